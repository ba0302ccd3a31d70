"""Follows a running experiment for users: its record, epoch by epoch and event by event."""
