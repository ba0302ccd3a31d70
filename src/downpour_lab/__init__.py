"""The core in virtual time: simulated clusters, their faults and checks, and policy comparisons.

Nothing here reads a clock, a file or a socket, and everything runs in one thread. So the same plan
always gives the same story.
"""
