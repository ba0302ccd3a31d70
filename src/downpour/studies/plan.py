"""What runs next: the seam between the runner, which is one, and the kinds of studies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Protocol

from downpour.reports.search_result import SearchRun
from downpour.studies.durations import spoken
from downpour.studies.study import EndedRun, Run
from downpour.studies.summary import RunSummary

OnEpoch = Callable[[int, float], bool]
"""Hears the accuracy after an epoch, from 1; returns whether the run should end with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyProgress:
    """How far a study is: `left` of its `total` runs are yet to be made, or to be made again.

    `is_successful` where nothing is left and the study has what it was made for. `seconds_left` is
    an estimate, None before a run has ended. `headline` stands beside the bar, `text` is a sentence
    for people, `fields` are values that JSON can hold.
    """

    total: int
    left: int
    is_successful: bool
    seconds_left: float | None
    headline: str
    text: str
    fields: dict[str, Any]

    @property
    def count(self) -> str:
        """How many runs are done, of how many."""
        return f"{self.total - self.left}/{self.total}"


class StudyPlan(Protocol):
    """Chooses the runs of a study one after the other."""

    @property
    def progress(self) -> StudyProgress:
        """How far the study is now."""

    @property
    def best(self) -> Run | None:
        """The best run so far, where the study looks for one."""

    @property
    def on_epoch(self) -> OnEpoch | None:
        """Hears the accuracies of the run that trains, where the plan may end it early."""

    def next(self) -> Run | None:
        """Choose the next run; None where all have been run."""

    def judge(self, summary: RunSummary) -> RunSummary:
        """Return the outcome of the run that trained as it counts for the study.

        Raises:
            ExperimentFailed: it must not count, and the study cannot go on.
        """

    def learn(self, ended: EndedRun) -> None:
        """Take in a run that was chosen and has ended."""

    def line(self, ended: EndedRun) -> str:
        """Tell people of a run that has just ended."""


def outcome(ended: RunSummary | SearchRun) -> str:
    """Tell in words how a run ended, how good it was, and how long it took."""
    accuracy = "" if ended.accuracy is None else f" accuracy {ended.accuracy:.2%}"
    reason = f": {ended.reason}" if ended.reason else ""
    return f"{ended.state}{accuracy}{reason} in {spoken(ended.wall_seconds)}"


def seconds_left(took: Iterable[tuple[str, float]], missing: Sequence[str]) -> float | None:
    """Estimate how long missing runs take: as others of their group, else as any.

    Args:
        took: The group of each run that has ended, and its seconds.
        missing: The group of each run that is missing.
    """
    known: defaultdict[str, list[float]] = defaultdict(list)
    for group, seconds in took:
        known[group].append(seconds)
    means = {group: fmean(seconds) for group, seconds in known.items()}
    if missing and not means:
        return None
    # A mean of means: a group with many repetitions says no more of the others than one with few.
    usual = fmean(means.values()) if means else 0.0
    return sum((means.get(group, usual) for group in missing), start=0.0)
