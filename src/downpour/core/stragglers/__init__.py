"""Straggler policies: pure functions that look at a round and return actions with reasons.

A policy takes a `RoundView` and returns actions. The reason of each action reaches the log, the
record and the screen unchanged. A policy only decides: the scheduler carries out the actions, and
the view tells the time. `core/families.py` registers the policies.
"""
