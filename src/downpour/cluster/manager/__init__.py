"""The manager: drives the scheduler core with real calls, files and a clock."""
