"""What is kept of an experiment: its record, which people read, and its journal, which counts.

Nothing here decides anything about an experiment; it is written down, read back and replayed.
"""
