"""The core in virtual time: simulated clusters, their faults and checks, and policy comparisons.

Managers and workers are the shipped ones. Nothing reads a clock, a file or a socket, and everything
runs in one thread of the machine. So the same plan always gives the same story.
"""
