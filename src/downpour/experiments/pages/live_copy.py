"""Writes a report's runs as a page to zoom and replay, in one file next to the report."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from downpour.experiments.dashboard.static_copy import static_page
from downpour.experiments.reading.study_result import StudyResult

LIVE_NAME = "live.html"
RUNS_MAX = 48
ATTEMPTS_MAX = 20_000
"""For all runs together: each attempt takes a few hundred bytes of the page."""


def write_live_copy(study: StudyResult, out: Path) -> dict[str, str]:
    """Write the page into a report's folder, with as many runs as fit.

    Returns:
        The URL of each run's page, relative to the report, by its experiment.

    Raises:
        StoreError: a record cannot be read.
        OSError: the page cannot be written.
    """
    page = out / LIVE_NAME
    folders = _folders(study)
    if not folders:
        page.unlink(missing_ok=True)
        return {}
    page.write_text(static_page(folders.values(), study.name), "utf-8")
    return {experiment: f"{LIVE_NAME}#/experiments/{quote(experiment)}" for experiment in folders}


def _folders(study: StudyResult) -> dict[str, Path]:
    """Return the folders of the runs' records, by experiment; first repetitions come first."""
    runs = [run for subgrid in study.subgrids for run in subgrid.runs]
    folders: dict[str, Path] = {}
    attempts = 0
    for run in sorted(runs, key=lambda run: run.repetition):
        name = run.result.experiment
        fits = len(folders) < RUNS_MAX and attempts + len(run.attempt_spans) <= ATTEMPTS_MAX
        if run.folder is not None and run.attempt_spans and name not in folders and fits:
            folders[name] = run.folder
            attempts += len(run.attempt_spans)
    return folders
