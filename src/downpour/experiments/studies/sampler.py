"""Chooses the next values, and which run to end early; the only module that knows Optuna.

We sample values with the tree-structured Parzen estimator (Bergstra et al. 2011, section 4); the
first ten runs are random. Optuna's own study, in which a run is called a trial, stays in memory.
We rebuild it from the ended runs, because a second file could contradict the folder. The values of
run n follow from (seed, n) and the results of earlier runs. So a search that was interrupted makes
the same runs as one that was not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from downpour.experiments.reading.measures import Measure
from downpour.experiments.reading.search_result import SearchRun
from downpour.experiments.studies.axis import Axis, Range
from downpour.experiments.studies.fields import Value
from downpour.experiments.studies.search import Search
from downpour.host.extras import require

if TYPE_CHECKING:
    from optuna import trial as optuna_trial
    from optuna.distributions import BaseDistribution
    from optuna.pruners import BasePruner

    from downpour.experiments.studies.pruner import Pruner


Values = Mapping[str, Value]
"""The values of a run in the searched fields."""


class Sampler:
    """Proposes the values of one run after the other, and learns the outcome of each.

    Between `propose` and `learn`, `is_hopeless` takes the run's values of the search's goal, epoch
    by epoch.

    Raises:
        MissingPackage: Optuna is not installed.
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
