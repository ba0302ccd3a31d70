"""Training with a manager and workers that end with the call."""
