"""Helps workers and clients find their manager, wait for it, and switch to a new leader."""
