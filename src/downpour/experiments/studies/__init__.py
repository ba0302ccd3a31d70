"""Studies: turns a grid or a search into runs, one after the other, and a folder of results.

`experiments/training.py` trains the runs; `show/` makes tables, figures and pages of them.
"""

from downpour.experiments.studies.folder import StudyFolder as StudyFolder
from downpour.experiments.studies.folder import read_folder as read_folder
from downpour.experiments.studies.grid import Grid as Grid
from downpour.experiments.studies.grid import grid_results as grid_results
from downpour.experiments.studies.running import Embedded as Embedded
from downpour.experiments.studies.running import Remote as Remote
from downpour.experiments.studies.running import run_study as run_study
from downpour.experiments.studies.search import Search as Search
from downpour.experiments.studies.study import Run as Run
from downpour.experiments.studies.study import StudySpec as StudySpec
