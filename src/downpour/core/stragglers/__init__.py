"""Straggler policies: pure functions that look at a round and return actions with reasons.

The reason of each action reaches the log, the record and the screen unchanged.
"""
