"""The version, and small values, names and errors that every wing shares; pure.

No clock, file, thread, socket or torch.
"""

VERSION = "0.1.0"
