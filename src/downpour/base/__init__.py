"""Small values, names and errors that every wing shares; pure.

No clock, file, thread, socket or torch.
"""
