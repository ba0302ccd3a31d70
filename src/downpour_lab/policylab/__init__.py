"""Compares straggler policies under the same conditions, in virtual time.

It runs the simulator on machines that follow given conditions, and measures the cost of a run. The
simulator itself searches for faults, and does not import this package.
"""
