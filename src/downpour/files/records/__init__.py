"""An experiment's record, for people, and its journal, which is authoritative.

This folder decides nothing about an experiment: it writes, reads and replays.
"""
