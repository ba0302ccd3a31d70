"""The simulator: drives the scheduler core with virtual time, from one seed, through every fault.

Nothing here reads a clock, a file or a socket, and there is one thread: the same plan always gives
the same story.
"""
