"""Demos for teaching: two runs side by side, what came of them, and what to notice."""
