"""Retrains an experiment from its record, task by task, and compares the bytes."""
