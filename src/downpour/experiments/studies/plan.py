"""Which run comes next: the interface between the runner and the kinds of studies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Protocol

from downpour.experiments.reading.search_result import SearchRun
from downpour.experiments.studies.durations import spoken
from downpour.experiments.studies.study import EndedRun, Run
from downpour.experiments.studies.summary import Measured, RunSummary

OnEpoch = Callable[[int, Measured], bool]
"""Called with an epoch, from 1, and its measurements; returns whether to end the run.

Raises SpecError if the study compares runs by a measure that the run does not have.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyProgress:
    """How far a study is: it must still run, or repeat, `left` of its `total` runs.

    `is_successful` is true once no run is left and the study has its result. `seconds_left` is an
    estimate, None before a run has ended. `headline` stands next to the bar, `text` is a sentence
    for people, `fields` are JSON values.
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
        """The number of finished runs, and of all runs: "3/12"."""
        return f"{self.total - self.left}/{self.total}"


class StudyPlan(Protocol):
    """Chooses the runs of a study one after the other."""

    @property
    def progress(self) -> StudyProgress:
        """How far the study is now."""

    @property
    def best(self) -> Run | None:
        """The best run so far; None if the study does not look for one or has none yet."""

    @property
    def on_epoch(self) -> OnEpoch | None:
        """Takes the measurements of the current run; None if the plan ends no run early."""

    def next(self) -> Run | None:
        """Return the next run; None if no run is left."""

    def judge(self, summary: RunSummary) -> RunSummary:
        """Return the outcome of the current run as the study counts it.

        Raises:
            ExperimentFailed: the run must not count, and the study cannot continue.
        """

    def learn(self, ended: EndedRun) -> None:
        """Take in the run that `next` returned, after its end."""

    def line(self, ended: EndedRun) -> str:
        """Return a line for people about a run that has just ended."""


def outcome(ended: RunSummary | SearchRun, measured: str) -> str:
    """Say how a run ended, what it measured, and how long it took."""
    reason = f": {ended.reason}" if ended.reason else ""
    parts = [str(ended.state), *([measured] if measured else [])]
    return f"{' '.join(parts)}{reason} in {spoken(ended.wall_seconds)}"


def seconds_left(took: Iterable[tuple[str, float]], missing: Sequence[str]) -> float | None:
    """Estimate the seconds of the missing runs: their groups' means, else the usual run's.

    Args:
        took: The group of each ended run, and its seconds.
        missing: The group of each missing run.
    """
    known: defaultdict[str, list[float]] = defaultdict(list)
    for group, seconds in took:
        known[group].append(seconds)
    means = {group: fmean(seconds) for group, seconds in known.items()}
    if missing and not means:
        return None
    # We average the groups' means, so that a group with many repetitions counts no more than
    # others.
    usual = fmean(means.values()) if means else 0.0
    return sum((means.get(group, usual) for group in missing), start=0.0)
