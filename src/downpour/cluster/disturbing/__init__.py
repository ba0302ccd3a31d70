"""Slows and kills a run's own processes on purpose, to show and test what a cluster does then."""
