"""The plan of a grid: its runs in order, those left out that have finished before.

A run that failed counts for nothing: it is run again the next time, but not twice by one plan.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from downpour.studies.durations import about, spoken
from downpour.studies.grid import Grid
from downpour.studies.plan import seconds_left
from downpour.studies.study import EndedRun, Run
from downpour.studies.summary import RunSummary


@dataclass(frozen=True, slots=True)
class GridProgress:
    """How far a grid is: the outcomes of the runs that have ended, and the runs to be made."""

    grid: Grid
    summaries: Mapping[str, RunSummary]
    missing: Sequence[Run]

    @classmethod
    def of(cls, grid: Grid, ended: Iterable[EndedRun]) -> GridProgress:
        """Look what is missing of a grid."""
        summaries = {one.run.name: one.summary for one in ended}
        finished = {name for name, summary in summaries.items() if summary.is_finished}
        missing = [run for name, run in grid.runs.items() if name not in finished]
        return cls(grid, summaries, missing)

    @property
    def total(self) -> int:
        """How many runs the grid has."""
        return len(self.grid.runs)

    @property
    def finished(self) -> int:
        """How many of them have finished."""
        return sum(summary.is_finished for summary in self.summaries.values())

    @property
    def left(self) -> int:
        """How many have not."""
        return self.total - self.finished

    @property
    def is_successful(self) -> bool:
        """Whether all runs have finished."""
        return not self.left

    @property
    def failures(self) -> dict[str, str]:
        """The reason of each run that failed."""
        failed = ((n, s) for n, s in self.summaries.items() if not s.is_finished)
        return {name: summary.reason or summary.state for name, summary in failed}

    @property
    def seconds_left(self) -> float | None:
        """About how long the missing runs take; None before one has finished."""
        took = (
            (self.grid.runs[name].group, summary.wall_seconds)
            for name, summary in self.summaries.items()
            if summary.is_finished
        )
        return seconds_left(took, [run.group for run in self.missing])

    @property
    def headline(self) -> str:
        """What is written beside the bar."""
        return "runs"

    def line(self, ended: EndedRun) -> str:
        """Tell of a run that has just ended, and how long the others take."""
        summary = ended.summary
        accuracy = "" if summary.accuracy is None else f" accuracy {summary.accuracy:.2%}"
        reason = f": {summary.reason}" if summary.reason else ""
        left = f", {about(self.seconds_left)} left" if self.missing else ""
        outcome = f"{summary.state}{accuracy}{reason} in {spoken(summary.wall_seconds)}"
        return f"{self.finished}/{self.total} {ended.run.name} {outcome}{left}"

    def to_dict(self) -> dict[str, Any]:
        """Turn it into values that JSON can hold."""
        return {
            "name": self.grid.name,
            "cells": self.total,
            "finished": self.finished,
            "failures": self.failures,
        }

    def __str__(self) -> str:
        failures = self.failures
        parts = [f"{self.grid.name}: {self.finished} of {self.total} runs"]
        if failures:
            first, reason = next(iter(failures.items()))
            parts.append(f"{len(failures)} failed ({first}: {reason})")
        return ", ".join(parts)


class GridPlan:
    """Chooses the runs of a grid in its order."""

    on_epoch = None
    best = None

    def __init__(self, grid: Grid, ended: Iterable[EndedRun]) -> None:
        before = GridProgress.of(grid, ended)
        self._grid = grid
        self._summaries = dict(before.summaries)
        self._missing = deque(before.missing)

    @property
    def progress(self) -> GridProgress:
        """How far the grid is now."""
        return GridProgress(self._grid, dict(self._summaries), tuple(self._missing))

    def next(self) -> Run | None:
        """Choose the first run that is missing."""
        return self._missing[0] if self._missing else None

    def judge(self, summary: RunSummary) -> RunSummary:
        """Return the outcome as it is."""
        return summary

    def learn(self, ended: EndedRun) -> None:
        """Strike the run off the list."""
        self._missing.popleft()
        self._summaries[ended.run.name] = ended.summary
