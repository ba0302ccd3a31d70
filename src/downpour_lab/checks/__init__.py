"""Checks that a simulated cluster must pass under any faults."""
