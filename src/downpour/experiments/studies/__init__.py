"""Studies: a grid or a search → runs, chosen one after the other, and a folder of their results.

`downpour.api` trains the runs; `downpour.reports` makes tables, figures and pages of them.
"""

from __future__ import annotations

from downpour.studies.backends import Backend, Embedded, Remote
from downpour.studies.folder import StudyFolder, read_folder
from downpour.studies.grid import Grid
from downpour.studies.results import grid_results
from downpour.studies.runner import run_study
from downpour.studies.search import Search
from downpour.studies.study import EndedRun, Run, Study

__all__ = [
    "Study",
    "Grid",
    "Search",
    "Run",
    "EndedRun",
    "StudyFolder",
    "read_folder",
    "run_study",
    "grid_results",
    "Backend",
    "Embedded",
    "Remote",
]
