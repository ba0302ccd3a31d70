"""Studies: turns a grid or a search into runs, one after the other, and a folder of results.

`experiments/running/` trains the runs; `show/` makes tables, figures and pages of them.
"""

from __future__ import annotations

from downpour.experiments.studies.backends import Embedded, Remote
from downpour.experiments.studies.folder import StudyFolder, read_folder
from downpour.experiments.studies.grid import Grid, grid_results
from downpour.experiments.studies.runner import run_study
from downpour.experiments.studies.search import Search
from downpour.experiments.studies.study import Run, Study

__all__ = [
    "Study",
    "Grid",
    "Search",
    "Run",
    "StudyFolder",
    "read_folder",
    "run_study",
    "grid_results",
    "Embedded",
    "Remote",
]
