"""The plan of a search: values from the sampler, and the rule by which a run ends early.

Whether the plan prunes a run follows only from its evaluations, epoch by epoch, and not from when
the client learns them. Epochs trained after the decision do not count. If a run fails because of
its values, for example because it diverges, it counts as the worst, and the search does not repeat
it. If a run failed for another reason (workers died, say), or a user cancelled it, the next plan
repeats it with the same values.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from downpour.base.errors import ExperimentFailed, SpecError
from downpour.base.states import ExperimentState, FailureKind, Goal
from downpour.experiments.studies.run_folder import Measured, RunSummary
from downpour.experiments.studies.search import Axis, Range, Search
from downpour.experiments.studies.study import (
    EndedRun,
    Run,
    StudyProgress,
    Value,
    outcome,
    seconds_left,
)
from downpour.host.extras import require
from downpour.record.result_parts import Measure
from downpour.record.study_result import SearchResult, SearchRun, SearchRunState
from downpour.show.tables.cells import shortened

if TYPE_CHECKING:
    from optuna import trial as optuna_trial
    from optuna.distributions import BaseDistribution
    from optuna.pruners import BasePruner

    from downpour.experiments.studies.search import Pruner


Values = Mapping[str, Value]
"""The values of a run in the searched fields."""


class Sampler:
    """Proposes the values of one run after the other, and learns the outcome of each.

    Between `propose` and `learn`, `is_hopeless` takes the run's values of the search's goal, epoch
    by epoch.

    It is the tree-structured Parzen estimator (Bergstra et al. 2011, section 4); the first ten runs
    are random. Optuna's own study, in which a run is called a trial, stays in memory. We rebuild it
    from the ended runs, because a second file could contradict the folder. The values of run n
    follow from (seed, n) and the results of earlier runs. So a search that was interrupted makes
    the same runs as one that was not.
    """

    def __init__(self, search: Search) -> None:
        require("a search", "tune")
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._search = search
        self._space = {name: _distribution(axis) for name, axis in search.axes.items()}
        self._study = optuna.create_study(
            direction="minimize" if search.goal.minimised else "maximize",
            pruner=_pruner(search.pruner),
        )
        self._trial: optuna_trial.Trial | None = None

    def propose(self, number: int) -> Values:
        """Choose the values of a run, and begin it."""
        from optuna.samplers import TPESampler

        # We make a new sampler for each run. If one generator served all runs, its values would
        # depend on how many runs this process has proposed.
        state = np.random.SeedSequence((self._search.seed, number)).generate_state(1)
        self._study.sampler = TPESampler(seed=int(state[0]))
        self._trial = self._study.ask(self._space)
        chosen = self._trial.params
        return {name: _value(axis, chosen[name]) for name, axis in self._search.axes.items()}

    def repeat(self, values: Values) -> Values:
        """Begin a run with these values, and return them."""
        params = {name: _param(axis, values[name]) for name, axis in self._search.axes.items()}
        self._study.enqueue_trial(params)
        self._trial = self._study.ask(self._space)
        return values

    def is_hopeless(self, epoch: int, value: float) -> bool:
        """Take the value after an epoch (from 1); return whether the run should end with it."""
        trial = self._begun()
        trial.report(value, epoch)
        return trial.should_prune()

    def learn(self, ended: SearchRun) -> None:
        """Take in the outcome of the run.

        A failed run counts as the worst, with accuracy 0 if that is the goal, so that the sampler
        avoids values with which training diverges. A run that the search repeats says nothing about
        its values.
        """
        from optuna.trial import TrialState

        if ended.to_repeat:
            self._study.tell(self._begun(), state=TrialState.FAIL)
        elif (value := self._counts_as(ended)) is None:
            # Optuna ranks it behind all finished runs.
            self._study.tell(self._begun(), state=TrialState.PRUNED)
        else:
            self._study.tell(self._begun(), value)
        self._trial = None

    def _counts_as(self, ended: SearchRun) -> float | None:
        """Return a run's final value; None if it has none and no worst value is known."""
        if ended.state == "finished" and ended.value is not None:
            return ended.value
        goal = self._search.goal
        is_share = Measure(goal.metric).is_share and not goal.minimised
        return 0.0 if is_share and ended.state != "pruned" else None

    def restore(self, ended: SearchRun) -> None:
        """Take in a run that ended before this process began."""
        self.repeat(ended.values)
        for epoch, value in judged(ended.epoch_values):
            self.is_hopeless(epoch, value)
        self.learn(ended)

    def _begun(self) -> optuna_trial.Trial:
        if self._trial is None:
            raise RuntimeError("no run has begun")
        return self._trial


def judged(epoch_values: Sequence[float | None]) -> Iterator[tuple[int, float]]:
    """Yield (epoch, value) for the epochs, from 1, whose value was measured."""
    for epoch, value in enumerate(epoch_values, 1):
        if value is not None:
            yield epoch, value


def _distribution(axis: Axis) -> BaseDistribution:
    """Describe an axis to Optuna; describe choices by index, because they may be tables."""
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    if not isinstance(axis, Range):
        return CategoricalDistribution(range(len(axis.values)))
    if axis.whole:
        return IntDistribution(int(axis.low), int(axis.high), log=axis.log)
    return FloatDistribution(axis.low, axis.high, log=axis.log)


def _value(axis: Axis, param: Value) -> Value:
    return param if isinstance(axis, Range) else axis.values[param]


def _param(axis: Axis, value: Value) -> Value:
    return value if isinstance(axis, Range) else axis.values.index(value)


def _pruner(rule: Pruner) -> BasePruner:
    from optuna import pruners

    if rule.name == "median":
        return pruners.MedianPruner(rule.startup_trials, n_warmup_steps=rule.min_epochs)
    if rule.name == "halving":
        return pruners.SuccessiveHalvingPruner(rule.min_epochs, reduction_factor=rule.factor)
    return pruners.NopPruner()


_STATES: dict[str, SearchRunState] = {
    "finished": "finished",
    "cancelled": "pruned",
    "failed": "failed",
}
_NOT_BY_ITS_VALUES = {FailureKind.LOST, FailureKind.STORE}
"""Failures that do not depend on a run's values: dead workers, unreadable files."""


class SearchPlan:
    """Chooses the runs of a search; a repeated run keeps its number."""

    def __init__(self, search: Search, ended: Iterable[EndedRun]) -> None:
        self._search = search
        self._runs = {run.number: run for run in (_searched(search, one) for one in ended)}
        done = {number for number, run in self._runs.items() if not run.to_repeat}
        self._missing = deque(n for n in range(1, search.asked + 1) if n not in done)

    @cached_property
    def _sampler(self) -> Sampler:
        """The sampler, which knows the runs that ended before.

        We make it when it is first needed: importing Optuna takes time, and `progress` does not
        need it.
        """
        sampler = Sampler(self._search)
        for run in self.result.runs:
            if not run.to_repeat:
                sampler.restore(run)
        return sampler

    @property
    def result(self) -> SearchResult:
        """The ended runs, in the order of their numbers."""
        search, runs = self._search, tuple(self._runs[number] for number in sorted(self._runs))
        return SearchResult(
            name=search.name,
            goal=search.goal,
            fields=search.shown,
            asked=search.asked,
            runs=runs,
        )

    @property
    def progress(self) -> StudyProgress:
        """How far the search is now."""
        result = self.result
        best = result.best
        known = "" if best is None else result.written(best)
        took = [(str(run.number), run.wall_seconds) for run in result.runs]
        return StudyProgress(
            total=result.asked,
            left=result.left,
            is_successful=not result.left and best is not None,
            # We don't know yet which values come next, so each run is its own group.
            seconds_left=seconds_left(took, [""] * result.left),
            headline=f"runs, best {known}" if known else "runs",
            text=str(result),
            fields=result.to_dict(),
        )

    @property
    def best(self) -> Run | None:
        """The finished run with the best value."""
        best = self.result.best
        return self._search.run(best.values, best.number) if best else None

    def next(self) -> Run | None:
        """Return the first missing run, with the sampler's values, or None."""
        if not self._missing:
            return None
        number = self._missing.popleft()
        sampler, former = self._sampler, self._runs.get(number)
        # A repeated run keeps its values, because the sampler chose them from the runs before it.
        values = sampler.repeat(former.values) if former else sampler.propose(number)
        run = self._search.run(values, number)
        self._judge = _Judge(sampler, self._search.goal, run.spec.epochs)
        return run

    def on_epoch(self, epoch: int, measured: Measured) -> bool:
        """Take the measurements after an epoch; return whether the run should end with it."""
        name = self._search.goal.metric
        if name not in measured:
            known = ", ".join(measured)
            raise SpecError("search.objective", name, f"no such metric; these are known: {known}")
        return self._judge.take(epoch, measured[name])

    def judge(self, summary: RunSummary) -> RunSummary:
        """Leave out the epochs after the one at which the plan pruned the run."""
        counted = self._judge.counted(summary)
        if counted.state == "cancelled" and self._judge.ended_at is None:
            raise ExperimentFailed(summary.experiment, summary.reason or "it was cancelled")
        return counted

    def learn(self, ended: EndedRun) -> None:
        """Give the sampler the outcome of the values that it proposed."""
        run = _searched(self._search, ended)
        self._runs[run.number] = run
        self._sampler.learn(run)

    def line(self, ended: EndedRun) -> str:
        """Return a line about a run that has just ended: its values, and whether it is the best."""
        run = self._runs[ended.run.number or 0]
        fields = self._search.shown
        chosen = ", ".join(f"{field.words} {shortened(run.values[field.name])}" for field in fields)
        best = " (the best so far)" if self.result.best is run else ""
        value = self.result.written(run)
        told = outcome(run, f"{self.result.measure.words} {value}" if value else "")
        return f"{self.progress.count} {ended.run.title} {told}: {chosen}{best}"


@dataclass(slots=True)
class _Judge:
    """Takes the values of a run in order, and decides once at which epoch it ends."""

    sampler: Sampler
    goal: Goal
    epochs: int
    last_epoch: int = 0
    ended_at: int | None = None

    def take(self, epoch: int, value: float | None) -> bool:
        """Take the value of an epoch, perhaps again; return whether the run should end.

        A missing value, or one that is not a number, decides nothing.
        """
        is_new = self.ended_at is None and epoch > self.last_epoch
        if is_new and value is not None and math.isfinite(value):
            self.last_epoch = epoch
            if self.sampler.is_hopeless(epoch, value) and epoch < self.epochs:
                self.ended_at = epoch
        return self.ended_at is not None

    def counted(self, summary: RunSummary) -> RunSummary:
        """Take the remaining epochs, and return the outcome without those after the end.

        The client may have missed the last epochs, if the run ended before it asked for them.
        """
        for epoch, measured in enumerate(summary.epochs, 1):
            self.take(epoch, measured.get(self.goal.metric))
        if self.ended_at is None:
            return summary
        return replace(
            summary,
            state=ExperimentState.CANCELLED,
            reason=f"pruned after epoch {self.ended_at} of {self.epochs}",
            asked_wrongly=False,
            epochs=summary.epochs[: self.ended_at],
        )


def _searched(search: Search, ended: EndedRun) -> SearchRun:
    """Return a run with its values in the searched fields."""
    run, summary = ended.run, ended.summary
    values = tuple(measured.get(search.goal.metric) for measured in summary.epochs)
    return SearchRun(
        number=run.number or 0,
        values=search.values_of(run.spec),
        state=_STATES[summary.state],
        reason=summary.reason,
        value=next((value for value in reversed(values) if value is not None), None),
        epoch_values=values,
        train_seconds=summary.train_seconds,
        wall_seconds=summary.wall_seconds,
        experiment=summary.experiment,
        to_repeat=summary.state == "failed" and summary.failure in _NOT_BY_ITS_VALUES,
    )
