"""What the drivers share: an experiment's record and the file a spec is read from.

Nothing here decides anything about an experiment; it writes down what happened and reads it back.
"""
