"""The plan of a grid: its runs in order, without finished ones.

If a run failed, the next plan repeats it, but no plan runs it twice. Its reason may hold for every
try, and the grid must end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from downpour.experiments.studies.durations import about
from downpour.experiments.studies.grid import Grid
from downpour.experiments.studies.plan import StudyProgress, outcome, seconds_left
from downpour.experiments.studies.study import EndedRun, Run
from downpour.experiments.studies.summary import RunSummary


class GridPlan:
    """Chooses the runs of a grid in the grid's order."""

    best = None
    on_epoch = None

    def __init__(self, grid: Grid, ended: Iterable[EndedRun]) -> None:
        self._grid = grid
        self._summaries = {one.run.name: one.summary for one in ended}
        finished = {name for name, summary in self._summaries.items() if summary.is_finished}
        self._missing = deque(run for name, run in grid.runs.items() if name not in finished)

    @property
    def progress(self) -> StudyProgress:
        """How far the grid is now."""
        runs = self._grid.runs
        finished = {name: one for name, one in self._summaries.items() if one.is_finished}
        failures = {
            name: one.reason or one.state
            for name, one in self._summaries.items()
            if name not in finished
        }
        text = f"{self._grid.name}: {len(finished)} of {len(runs)} runs"
        if failures:
            first, reason = next(iter(failures.items()))
            text += f", {len(failures)} failed ({first}: {reason})"
        took = [(runs[name].group, one.wall_seconds) for name, one in finished.items()]
        return StudyProgress(
            total=len(runs),
            left=len(runs) - len(finished),
            is_successful=len(finished) == len(runs),
            seconds_left=seconds_left(took, [run.group for run in self._missing]),
            headline="runs",
            text=text,
            fields={
                "name": self._grid.name,
                "cells": len(runs),
                "finished": len(finished),
                "failures": failures,
            },
        )

    def next(self) -> Run | None:
        """Return the first run that is missing, or None."""
        # The run stays in the list until `learn`, so that the estimate of the time left includes
        # it.
        return self._missing[0] if self._missing else None

    def judge(self, summary: RunSummary) -> RunSummary:
        """Return the outcome as it is."""
        return summary

    def learn(self, ended: EndedRun) -> None:
        """Take the run off the list of missing ones."""
        self._missing.popleft()
        self._summaries[ended.run.name] = ended.summary

    def line(self, ended: EndedRun) -> str:
        """Return a line about a run that has just ended, with an estimate for the others."""
        progress = self.progress
        told = outcome(ended.summary, ended.summary.in_words)
        left = f", {about(progress.seconds_left)} left" if self._missing else ""
        return f"{progress.count} {ended.run.name} {told}{left}"
