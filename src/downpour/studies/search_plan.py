"""The plan of a search: values from the sampler, and the rule by which a run ends early.

Whether a run is pruned follows from its accuracies alone, epoch by epoch, not from how soon the
news of them arrive: an epoch that was trained beyond is not counted. A run that fails because of
its values, as one that diverges, counts as one that learned nothing, and is not run again. A run
that failed by bad luck, because workers died, say, is run again with the same values the next time,
as is one that was cancelled by a user.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from downpour.errors import ExperimentFailed
from downpour.reports.search_result import SearchResult, SearchRun, SearchRunState
from downpour.reports.tables import shortened
from downpour.studies.durations import spoken
from downpour.studies.plan import seconds_left
from downpour.studies.sampler import Sampler, judged
from downpour.studies.search import Search
from downpour.studies.study import EndedRun, Run
from downpour.studies.summary import RunSummary
from downpour.values import FailureKind

_STATES: dict[str, SearchRunState] = {
    "finished": "finished",
    "cancelled": "pruned",
    "failed": "failed",
}
_BAD_LUCK = {FailureKind.LOST, FailureKind.STORE}
"""What ends attempts whatever is trained: workers that die, files that cannot be read."""


@dataclass(frozen=True, slots=True)
class SearchProgress:
    """How far a search is."""

    result: SearchResult

    @classmethod
    def of(cls, search: Search, ended: Iterable[EndedRun]) -> SearchProgress:
        """Sum up the runs that have ended."""
        return cls(_result(search, (_searched(search, one) for one in ended)))

    @property
    def total(self) -> int:
        """How many runs the search asks for."""
        return self.result.asked

    @property
    def left(self) -> int:
        """How many are yet to be made, or to be made again."""
        return self.result.left

    @property
    def is_successful(self) -> bool:
        """Whether all runs have ended, and one of them is the best."""
        return not self.left and self.result.best is not None

    @property
    def seconds_left(self) -> float | None:
        """About how long the others take; None before the first has ended."""
        took = [(str(run.number), run.wall_seconds) for run in self.result.runs]
        # What will be tried is not known yet; a run without a number is like any other.
        return seconds_left(took, [""] * self.left)

    @property
    def headline(self) -> str:
        """What is written beside the bar: the best accuracy, once there is one."""
        best = self.result.best
        return f"runs, best {best.accuracy:.2%}" if best and best.accuracy else "runs"

    def line(self, ended: EndedRun) -> str:
        """Tell of a run that has just ended: its values, and whether it is the best."""
        run = next(run for run in self.result.runs if run.number == ended.run.number)
        accuracy = "" if run.accuracy is None else f" accuracy {run.accuracy:.2%}"
        reason = f": {run.reason}" if run.reason else ""
        fields = self.result.fields
        chosen = ", ".join(f"{field.words} {shortened(run.values[field.name])}" for field in fields)
        best = " (the best so far)" if self.result.best is run else ""
        outcome = f"{run.state}{accuracy}{reason} in {spoken(run.wall_seconds)}"
        done = self.total - self.left
        return f"{done}/{self.total} {ended.run.title} {outcome}: {chosen}{best}"

    def to_dict(self) -> dict[str, Any]:
        """Turn it into values that JSON can hold."""
        return self.result.to_dict()

    def __str__(self) -> str:
        return str(self.result)


class SearchPlan:
    """Chooses the runs of a search, with those that failed by bad luck in their places again."""

    def __init__(self, search: Search, ended: Iterable[EndedRun]) -> None:
        self._search = search
        self._sampler = Sampler(search)
        before = SearchProgress.of(search, ended).result
        self._runs = {run.number: run for run in before.runs}
        done = {run.number for run in before.runs if not run.to_repeat}
        for number in sorted(done):
            self._sampler.restore(self._runs[number])
        self._missing = deque(n for n in range(1, search.asked + 1) if n not in done)
        self._judge = _Judge(self._sampler, epochs=0)

    @property
    def progress(self) -> SearchProgress:
        """How far the search is now."""
        return SearchProgress(_result(self._search, self._runs.values()))

    @property
    def best(self) -> Run | None:
        """The finished run with the highest accuracy."""
        best = self.progress.result.best
        return self._search.run(best.values, best.number) if best else None

    def next(self) -> Run | None:
        """Choose the values of the first run that is missing."""
        if not self._missing:
            return None
        number = self._missing.popleft()
        former = self._runs.get(number)
        sampler = self._sampler
        values = sampler.repeat(former.values) if former else sampler.propose(number)
        run = self._search.run(values, number)
        self._judge = _Judge(sampler, run.spec.epochs)
        return run

    def on_epoch(self, epoch: int, accuracy: float) -> bool:
        """Take the accuracy after an epoch; returns whether the run should end with it."""
        return self._judge.hears(epoch, accuracy)

    def judge(self, summary: RunSummary) -> RunSummary:
        """Leave out what came after the run's end.

        Raises:
            ExperimentFailed: the run was cancelled, and not by this plan.
        """
        counted = self._judge.sum_up(summary)
        if counted.state == "cancelled" and self._judge.ended_at is None:
            raise ExperimentFailed(summary.experiment, summary.reason or "it was cancelled")
        return counted

    def learn(self, ended: EndedRun) -> None:
        """Tell the sampler what came of the values that it proposed."""
        run = _searched(self._search, ended)
        self._runs[run.number] = run
        self._sampler.learn(run)


@dataclass(slots=True)
class _Judge:
    """Hears the accuracies of a run in order, and decides once at which epoch it ends."""

    sampler: Sampler
    epochs: int
    heard: int = 0
    ended_at: int | None = None

    def hears(self, epoch: int, accuracy: float) -> bool:
        """Hear of an epoch, which may be heard of twice; returns whether the run has ended."""
        if self.ended_at is None and epoch > self.heard:
            self.heard = epoch
            if self.sampler.is_hopeless(epoch, accuracy) and epoch < self.epochs:
                self.ended_at = epoch
        return self.ended_at is not None

    def sum_up(self, summary: RunSummary) -> RunSummary:
        """Hear the epochs that are left, and leave out those after the run's end."""
        for epoch, accuracy in judged(summary.epoch_accuracy):
            self.hears(epoch, accuracy)
        if self.ended_at is None:
            return summary
        counted = summary.epoch_accuracy[: self.ended_at]
        return replace(
            summary,
            state="cancelled",
            reason=f"pruned after epoch {self.ended_at} of {self.epochs}",
            asked_wrongly=False,
            epoch_accuracy=counted,
            accuracy=counted[-1],
        )


def _result(search: Search, runs: Iterable[SearchRun]) -> SearchResult:
    in_order = sorted(runs, key=lambda run: run.number)
    return SearchResult(
        name=search.name, fields=search.shown, asked=search.asked, runs=tuple(in_order)
    )


def _searched(search: Search, ended: EndedRun) -> SearchRun:
    """Return a run as a search sees it."""
    run, summary = ended.run, ended.summary
    return SearchRun(
        number=run.number or 0,
        values=search.values_of(run.spec),
        state=_STATES[summary.state],
        reason=summary.reason,
        accuracy=summary.accuracy,
        epoch_accuracy=summary.epoch_accuracy,
        train_seconds=summary.train_seconds,
        wall_seconds=summary.wall_seconds,
        experiment=summary.experiment,
        to_repeat=summary.state == "failed" and summary.failure in _BAD_LUCK,
    )
