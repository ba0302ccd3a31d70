"""Slows and kills a run's own processes on purpose, to show and test how a cluster reacts."""
