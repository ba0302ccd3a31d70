"""Demos for teaching: two runs side by side, their results, and the lesson."""
