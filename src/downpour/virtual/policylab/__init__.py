"""Compares straggler policies in the same conditions, in virtual time.

It runs the simulator on machines that follow given conditions, and measures what a run costs. The
simulator itself searches for faults, and does not import this package.
"""
