"""Grids of experiments: a file → cells, what is missing run, and a folder of their results.

Training is done elsewhere (`downpour.run`, or a manager); reports are made elsewhere, too.
"""

from __future__ import annotations

from downpour.experiments.folder import GRID_NAME, Folder
from downpour.experiments.grid import Cell, Grid, Group, Point
from downpour.experiments.grid_file import read_grid
from downpour.experiments.runner import OnKept, run_missing
from downpour.experiments.trainers import Embedded, Remote, Trainer

__all__ = [
    "Grid",
    "Group",
    "Point",
    "Cell",
    "Folder",
    "GRID_NAME",
    "read_grid",
    "run_missing",
    "OnKept",
    "Trainer",
    "Embedded",
    "Remote",
]
