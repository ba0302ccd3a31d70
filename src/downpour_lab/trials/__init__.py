"""Runs and judges one plan, and searches for a seed that fails."""
