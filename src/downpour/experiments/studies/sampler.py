"""The values that a search may try, and the sampler that chooses among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from downpour.base.errors import SpecError, require
from downpour.base.states import Goal
from downpour.core.spec import TABLES, Spec
from downpour.experiments.studies.study import Value, whole_number
from downpour.record.result_parts import Measure
from downpour.record.study_result import Axis, Choices, Range, SearchRun, is_number

if TYPE_CHECKING:
    from optuna import trial as optuna_trial
    from optuna.distributions import BaseDistribution
    from optuna.pruners import BasePruner

_ACCEPTED = "must be a list of values, or { low = …, high = … }, optionally with log = true"


def axis_of(field: str, given: Value) -> Axis:
    """Read a field's axis from a file."""
    name = f"search.{field}"
    if isinstance(given, list):
        if not given:
            raise SpecError(name, given, "must not be an empty list; leave the field out instead")
        # A run's spec has a table such as `[inside]` with all fields, so its choices do, too.
        table = TABLES.get(field)
        values = [
            table.make(value).model_dump(mode="json")
            if table is not None and isinstance(value, dict)
            else value
            for value in given
        ]
        if any(value in values[:place] for place, value in enumerate(values)):
            raise SpecError(name, values, "names a value twice")
        return Choices(tuple(values))
    if not isinstance(given, dict) or not {"low", "high"} <= given.keys():
        raise SpecError(name, given, _ACCEPTED)
    if unknown := sorted(given.keys() - {"low", "high", "log"}):
        raise SpecError(f"{name}.{unknown[0]}", given[unknown[0]], f"no such setting; {_ACCEPTED}")
    return _range(name, field, given)


def _range(name: str, field: str, given: Mapping[str, Value]) -> Range:
    low, high, log = given["low"], given["high"], given.get("log", False)
    for bound in ("low", "high"):
        if not is_number(given[bound]):
            raise SpecError(f"{name}.{bound}", given[bound], "must be a number")
    if not isinstance(log, bool):
        raise SpecError(f"{name}.log", log, "must be true or false")
    if low >= high:
        raise SpecError(name, dict(given), "low must be below high")
    if log and low <= 0:
        raise SpecError(f"{name}.low", low, "must be above 0 with log = true")
    whole = all(isinstance(bound, int) for bound in (low, high)) and _takes_whole(field)
    return Range(low if whole else float(low), high if whole else float(high), log, whole)


def _takes_whole(field: str) -> bool:
    """Whether a field takes only whole numbers. We don't know that of an option, so it may."""
    schema: Any = Spec.model_json_schema()["properties"].get(field, {})
    kinds = [kind for kind in schema.get("anyOf", [schema]) if kind.get("type") != "null"]
    return "." in field or any(kind.get("type") == "integer" for kind in kinds)


_COUNT_MAX = 1_000_000
_SETTINGS = {
    "median": {"min_epochs", "startup_trials"},
    "halving": {"min_epochs", "factor"},
    "none": set[str](),
}
_FIELD = "search.pruner"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruner:
    """A rule by which a run ends before its last epoch, but never before `min_epochs`.

    `median` (Golovin et al. 2017, section 3.2.2): after `startup_trials` have finished, a run
    ends if its best accuracy so far is below their median at the same epoch. `halving`
    (Li et al. 2020, "A System for Massively Parallel Hyperparameter Tuning"): after min_epochs,
    min_epochs · factor, min_epochs · factor², … epochs, only the best 1/`factor` of the runs so far
    continue. `none`: all runs continue.
    """

    name: str = "median"
    min_epochs: int = 1
    startup_trials: int = 5
    factor: int = 3

    @classmethod
    def of(cls, field_value: Value) -> Self:
        """Read the rule from a file: a name, or a table with a name and settings."""
        given = dict(field_value) if isinstance(field_value, dict) else {"name": field_value}
        name = given.pop("name", cls().name)
        if not isinstance(name, str) or name not in _SETTINGS:
            raise SpecError(_FIELD, name, "must be median, halving or none, or a table with a name")
        for setting, value in given.items():
            field = f"{_FIELD}.{setting}"
            if setting not in _SETTINGS[name]:
                settings = " and ".join(sorted(_SETTINGS[name])) or "nothing"
                raise SpecError(field, value, f"no such setting; {name} takes {settings}")
            whole_number(field, value, _COUNT_MAX, least=2 if setting == "factor" else 1)
        return cls(name=name, **given)

    def to_toml(self) -> dict[str, Value]:
        """Write the rule with all its settings."""
        return {key: getattr(self, key) for key in ("name", *sorted(_SETTINGS[self.name]))}


Values = Mapping[str, Value]
"""The values of a run in the searched fields."""


class Sampler:
    """Proposes the values of one run after the other, and learns the outcome of each.

    Between `propose` and `learn`, `is_hopeless` takes the run's values of the search's goal, epoch
    by epoch.

    It is the tree-structured Parzen estimator (Bergstra et al. 2011, section 4); the first ten runs
    are random. Optuna's own study, in which a run is called a trial, stays in memory.
    """

    _trial: optuna_trial.Trial

    def __init__(self, axes: Mapping[str, Axis], goal: Goal, pruner: Pruner, seed: int) -> None:
        require("a search", "tune")
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._axes, self._goal, self._seed = axes, goal, seed
        self._space = {name: _distribution(axis) for name, axis in axes.items()}
        self._study = optuna.create_study(
            direction="minimize" if goal.minimised else "maximize", pruner=_pruner(pruner)
        )

    def propose(self, number: int) -> Values:
        """Choose the values of a run, and begin it."""
        from optuna.samplers import TPESampler

        # We make a new sampler for each run. If one generator served all runs, its values would
        # depend on how many runs this process has proposed.
        state = np.random.SeedSequence((self._seed, number)).generate_state(1)
        self._study.sampler = TPESampler(seed=int(state[0]))
        self._trial = self._study.ask(self._space)
        params = self._trial.params
        return {
            name: axis.values[params[name]] if isinstance(axis, Choices) else params[name]
            for name, axis in self._axes.items()
        }

    def repeat(self, values: Values) -> Values:
        """Begin a run with these values, and return them."""
        params = {
            name: axis.values.index(values[name]) if isinstance(axis, Choices) else values[name]
            for name, axis in self._axes.items()
        }
        self._study.enqueue_trial(params)
        self._trial = self._study.ask(self._space)
        return values

    def is_hopeless(self, epoch: int, value: float) -> bool:
        """Take the value after an epoch (from 1); return whether the run should end with it."""
        self._trial.report(value, epoch)
        return self._trial.should_prune()

    def learn(self, ended: SearchRun) -> None:
        """Take in the outcome of the run.

        A failed run counts as the worst, with accuracy 0 if that is the goal, so that the sampler
        avoids values with which training diverges. A run that the search repeats says nothing about
        its values.
        """
        from optuna.trial import TrialState

        if ended.to_repeat:
            self._study.tell(self._trial, state=TrialState.FAIL)
        elif (value := self._counts_as(ended)) is None:
            # Optuna ranks it behind all finished runs.
            self._study.tell(self._trial, state=TrialState.PRUNED)
        else:
            self._study.tell(self._trial, value)

    def _counts_as(self, ended: SearchRun) -> float | None:
        """Return a run's final value; None if it has none and no worst value is known."""
        if ended.state == "finished" and ended.value is not None:
            return ended.value
        is_share = Measure(self._goal.metric).is_share and not self._goal.minimised
        return 0.0 if is_share and ended.state != "pruned" else None

    def restore(self, ended: SearchRun) -> None:
        """Take in a run that ended before this process began."""
        self.repeat(ended.values)
        for epoch, value in enumerate(ended.epoch_values, 1):
            if value is not None:
                self.is_hopeless(epoch, value)
        self.learn(ended)


def _distribution(axis: Axis) -> BaseDistribution:
    """Describe an axis to Optuna; describe choices by index, because they may be tables."""
    from optuna import distributions

    if isinstance(axis, Choices):
        return distributions.CategoricalDistribution(range(len(axis.values)))
    if axis.whole:
        return distributions.IntDistribution(int(axis.low), int(axis.high), log=axis.log)
    return distributions.FloatDistribution(axis.low, axis.high, log=axis.log)


def _pruner(rule: Pruner) -> BasePruner:
    from optuna import pruners

    if rule.name == "median":
        return pruners.MedianPruner(rule.startup_trials, n_warmup_steps=rule.min_epochs)
    if rule.name == "halving":
        return pruners.SuccessiveHalvingPruner(rule.min_epochs, reduction_factor=rule.factor)
    return pruners.NopPruner()
