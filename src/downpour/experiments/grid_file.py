"""The file of a grid, as a user wrote it; so that `grid.py` touches no file."""

from __future__ import annotations

from pathlib import Path

from downpour.experiments.grid import Grid
from downpour.runtime.spec_file import read_toml


def read_grid(path: Path) -> Grid:
    """Read a grid from a TOML file.

    Raises:
        SpecError: where the file cannot be read, is not TOML, or says what is not accepted.
    """
    return Grid.make(read_toml(path))
