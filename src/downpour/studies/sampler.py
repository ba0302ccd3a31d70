"""The one place that knows Optuna: what to try next, and which trial to end early.

Values are sampled with the tree-structured Parzen estimator (Bergstra et al. 2011, section 4); the
first ten trials are random. Optuna's own books are kept in memory alone, and written anew from the
trials that have ended: so there is one truth, the folder, which no second file can contradict. What
trial n gets follows from (seed, n) and the accuracies of those before it. So a search that was
interrupted goes on as it would have gone on anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from downpour.reports.tuned import Trial
from downpour.studies.axis import Axis, Range
from downpour.studies.grid import Value
from downpour.studies.search import Search

if TYPE_CHECKING:
    from optuna import trial as optuna_trial
    from optuna.distributions import BaseDistribution
    from optuna.pruners import BasePruner

    from downpour.studies.pruner import Pruner


Values = Mapping[str, Value]
"""What a trial has in the fields that are searched."""


class Sampler:
    """Proposes the values of one trial after the other, and hears what came of each.

    Between `propose` and `learn` it is told the trial's accuracies, epoch by epoch.
    """

    def __init__(self, search: Search) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._search = search
        self._space = {name: _distribution(axis) for name, axis in search.axes.items()}
        self._study = optuna.create_study(direction="maximize", pruner=_pruner(search.pruner))
        self._trial: optuna_trial.Trial | None = None

    def propose(self, number: int) -> Values:
        """Choose the values of a trial, which begins with that."""
        from optuna.samplers import TPESampler

        state = np.random.SeedSequence((self._search.seed, number)).generate_state(1)
        self._study.sampler = TPESampler(seed=int(state[0]))
        self._trial = self._study.ask(self._space)
        chosen = self._trial.params
        return {name: _value(axis, chosen[name]) for name, axis in self._search.axes.items()}

    def repeat(self, values: Values) -> Values:
        """Begin a trial that has these values, and return them."""
        params = {name: _param(axis, values[name]) for name, axis in self._search.axes.items()}
        self._study.enqueue_trial(params)
        self._trial = self._study.ask(self._space)
        return values

    def is_hopeless(self, epoch: int, accuracy: float) -> bool:
        """Hear the accuracy after an epoch (from 1); says whether the trial should end with it."""
        trial = self._begun()
        trial.report(accuracy, epoch)
        return trial.should_prune()

    def learn(self, ended: Trial) -> None:
        """Hear what the trial came to. One that has failed is taken for one that learned nothing.

        That it diverged, say, is to keep the sampler away from values like these. One that is to be
        repeated says nothing about them.
        """
        from optuna.trial import TrialState

        if ended.to_repeat:
            self._study.tell(self._begun(), state=TrialState.FAIL)
        elif ended.state == "pruned":
            self._study.tell(self._begun(), state=TrialState.PRUNED)
        else:
            finished = ended.state == "finished"
            self._study.tell(self._begun(), (ended.accuracy or 0.0) if finished else 0.0)
        self._trial = None

    def relive(self, ended: Trial) -> None:
        """Hear of a trial that ended in an earlier run of the search, as if it were now."""
        self.repeat(ended.values)
        for epoch, accuracy in judged(ended.epoch_accuracy):
            self.is_hopeless(epoch, accuracy)
        self.learn(ended)

    def _begun(self) -> optuna_trial.Trial:
        if self._trial is None:
            raise RuntimeError("no trial has begun")
        return self._trial


def judged(epoch_accuracy: Sequence[float | None]) -> Iterator[tuple[int, float]]:
    """Yield the epochs, from 1, whose accuracy was measured, with it."""
    for epoch, accuracy in enumerate(epoch_accuracy, 1):
        if accuracy is not None:
            yield epoch, accuracy


def _distribution(axis: Axis) -> BaseDistribution:
    """Describe an axis to Optuna; choices by their places, because they may be tables."""
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
