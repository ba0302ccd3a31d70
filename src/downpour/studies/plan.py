"""What runs next: the seam between the runner, which is one, and the kinds of studies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import Any, Protocol

from downpour.studies.study import EndedRun, Run
from downpour.studies.summary import RunSummary

OnEpoch = Callable[[int, float], bool]
"""Hears the accuracy after an epoch, from 1; says whether the run should end with it."""


class Progress(Protocol):
    """How far a study is, as a value."""

    @property
    def total(self) -> int:
        """How many runs the study asks for."""

    @property
    def left(self) -> int:
        """How many of them are yet to be run, or to be run again."""

    @property
    def is_successful(self) -> bool:
        """Whether nothing is left, and the study has what it was made for."""

    @property
    def seconds_left(self) -> float | None:
        """About how long the rest takes; None before the first run has ended."""

    @property
    def headline(self) -> str:
        """What is written beside the bar."""

    def line(self, ended: EndedRun) -> str:
        """Tell of a run that has just ended."""

    def to_dict(self) -> dict[str, Any]:
        """Turn it into values that JSON can hold."""


class Plan(Protocol):
    """Chooses the runs of a study one after the other."""

    @property
    def on_epoch(self) -> OnEpoch | None:
        """Hears the accuracies of the run that trains, where the plan may end it early."""

    @property
    def progress(self) -> Progress:
        """How far the study is now."""

    @property
    def best(self) -> Run | None:
        """The best run so far, where the study looks for one."""

    def next(self) -> Run | None:
        """Choose the next run; None where all have been run."""

    def judge(self, summary: RunSummary) -> RunSummary:
        """Return the outcome of the run that trained as it counts for the study.

        Raises:
            ExperimentFailed: it must not count, and the study cannot go on.
        """

    def learn(self, ended: EndedRun) -> None:
        """Take in a run that was chosen and has ended."""


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
