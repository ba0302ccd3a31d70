"""Checks of a simulated cluster that must hold under any faults."""
