"""An experiment's record, for people, and its journal, which is authoritative.

Nothing here decides anything about an experiment; it is written down, read back and replayed.
"""
