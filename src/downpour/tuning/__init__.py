"""Searches: a file → trials that are experiments, chosen by Optuna, and a folder of their results.

Training is done elsewhere (`downpour.Client`); figures and tables are made elsewhere, too.
"""

from __future__ import annotations

from downpour.tuning.folder import TUNE_NAME, Folder
from downpour.tuning.runner import run_search
from downpour.tuning.search import Search
from downpour.tuning.search_file import read_search
from downpour.tuning.trainers import Embedded, Remote, Trainer

__all__ = [
    "Search",
    "Folder",
    "TUNE_NAME",
    "read_search",
    "run_search",
    "Trainer",
    "Embedded",
    "Remote",
]
