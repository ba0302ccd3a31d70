"""A search: fields of the spec, axes to vary, and a number of runs; it yields possible runs.

The file is a spec with a `[search]` table, which gives an axis for each searched field. The search
ignores the spec's own value of such a field. The sampler chooses the values of a run. This module
defines the possible values, and the run that they make. The file calls the number of runs `trials`.
Nothing here reads a clock.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Self

import tomli_w

from downpour.base.errors import SpecError
from downpour.base.states import LOSS, Goal
from downpour.core.resolve import resolve
from downpour.core.spec import TABLES, Spec
from downpour.experiments.studies.study import (
    OPTIONS,
    WORKERS_MAX,
    Run,
    Study,
    Value,
    check_name,
    resolved_defaults,
    whole_number,
)
from downpour.files.spec_file import refuse_grid
from downpour.learning.training.trainer import trainer_of
from downpour.record.study_result import SearchField

_BOUNDS = {"low", "high", "log"}
_ACCEPTED = "must be a list of values, or { low = …, high = … }, optionally with log = true"


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from `low` to `high`, both included; if `log`, a search samples their logarithm.

    If `whole`, only whole numbers, because the field takes no others.
    """

    low: float
    high: float
    log: bool
    whole: bool

    @property
    def ends(self) -> tuple[Value, ...]:
        """The values to check: if the spec accepts both ends, it accepts all between them."""
        return self.low, self.high

    def holds(self, value: Value) -> bool:
        """Whether a value is in the range."""
        return is_number(value) and bool(self.low <= value <= self.high)

    def to_toml(self) -> dict[str, Value]:
        """Write the range as a file has it."""
        return {"low": self.low, "high": self.high, "log": self.log}


@dataclass(frozen=True, slots=True)
class Choices:
    """A list of values, in no order."""

    values: tuple[Value, ...]

    @property
    def ends(self) -> tuple[Value, ...]:
        """The values to check: all of them."""
        return self.values

    def holds(self, value: Value) -> bool:
        """Whether a value is one of the choices."""
        return value in self.values

    def to_toml(self) -> list[Value]:
        """Write the choices as a file has them."""
        return list(self.values)


Axis = Range | Choices


def axis_of(field: str, given: Value) -> Axis:
    """Read a field's axis from a file."""
    name = f"search.{field}"
    if isinstance(given, list):
        return _choices(name, [_whole(field, one) for one in given])
    if not isinstance(given, dict) or not {"low", "high"} <= given.keys():
        raise SpecError(name, given, _ACCEPTED)
    if unknown := sorted(given.keys() - _BOUNDS):
        raise SpecError(f"{name}.{unknown[0]}", given[unknown[0]], f"no such setting; {_ACCEPTED}")
    return _range(name, field, given)


def _choices(name: str, values: list[Value]) -> Choices:
    if not values:
        raise SpecError(name, values, "must not be an empty list; leave the field out instead")
    if any(one in values[:place] for place, one in enumerate(values)):
        raise SpecError(name, values, "names a value twice")
    return Choices(tuple(values))


def _whole(field: str, value: Value) -> Value:
    """Add the defaults to a table such as `[inside]`: a run's spec has it with all fields."""
    if field not in TABLES or not isinstance(value, dict):
        return value
    return TABLES[field].make(value).model_dump(mode="json")


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


def is_number(value: Value) -> bool:
    """Whether a value is a finite number; true and false are not."""
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    return numeric and math.isfinite(value)


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
                known = " and ".join(sorted(_SETTINGS[name])) or "nothing"
                raise SpecError(field, value, f"no such setting; {name} takes {known}")
            whole_number(field, value, _COUNT_MAX, least=2 if setting == "factor" else 1)
        return cls(name=name, **given)

    def to_toml(self) -> dict[str, Value]:
        """Write the rule with all its settings."""
        fields = asdict(self)
        return {"name": self.name, **{key: fields[key] for key in sorted(_SETTINGS[self.name])}}


SEARCH_FILE = "tune.toml"
_SEARCH = "search"
_ABOVE = ("name", "workers", _SEARCH)
_TABLE_FIELDS = ("trials", "seed", "pruner", "objective")
_RUNS = 20
_RUNS_MAX = 10_000
_SEED_MAX = 2**63 - 1
_ACCURACY = "accuracy"
_CORNERS_MAX = 10_000  # fourteen ranges have more, and we validate a spec for each
_NEVER = {
    "name": "names the search",
    "workers": "changes no result; set one number above [search]",
    "device": "must be the same for all runs; set it above [search]",
    "evaluate_every": "decides which results the search sees; set it above [search]",
}


@dataclass(frozen=True)
class Search(Study):
    """A study that chooses its runs as it goes.

    `fields` are the spec's own, `axes` the searched ones. `goal` is the metric or loss to improve.
    """

    kind: ClassVar[str] = "search"
    file_name: ClassVar[str] = SEARCH_FILE
    runs_folder: ClassVar[str] = "trials"
    # A run of a search is often shorter than the seconds that a manager and workers need to start.
    shares_workers: ClassVar[bool] = True

    name: str
    fields: Mapping[str, Value]
    workers: int | None
    axes: Mapping[str, Axis]
    asked: int
    seed: int
    pruner: Pruner
    goal: Goal

    @classmethod
    def make(cls, fields: Mapping[str, Value]) -> Search:
        """Make a search from a file's fields; the spec accepts all choices and ends of ranges."""
        search = cls._of(fields)
        for run in search.samples():
            if not run.spec.evaluate_every:
                accepted = f"must be at least 1, because the search optimizes {search.goal.metric}"
                raise SpecError("evaluate_every", 0, accepted)
        return search

    def to_toml(self) -> str:
        """Write the search with every field resolved."""
        workers = {} if self.workers is None else {"workers": self.workers}
        table = {
            "trials": self.asked,
            "seed": self.seed,
            "objective": str(self.goal),
            "pruner": self.pruner.to_toml(),
            **{field: axis.to_toml() for field, axis in self.axes.items()},
        }
        return tomli_w.dumps({"name": self.name, **self.fields, **workers, _SEARCH: table})

    def run(self, values: Mapping[str, Value], number: int | None = None) -> Run:
        """Make the run with these values in the searched fields."""
        fields = {"name": self.name, **self.fields}
        for axis, value in values.items():
            field, dot, option = axis.partition(".")
            fields[field] = {**fields.get(field, {}), option: value} if dot else value
        if self.workers is None and fields.get("shards") is None:
            raise SpecError("workers", self.workers, "is required, unless shards is given")
        asked = Spec.make({"shards": self.workers, **fields})
        spec = resolve(asked, self.workers, trainer=trainer_of(asked, self.workers))
        return Run(spec, self.workers, number)

    def values_of(self, spec: Spec) -> dict[str, Value]:
        """Return a spec's values in the searched fields; None for a missing option."""
        fields = spec.model_dump(mode="json")
        values: dict[str, Value] = {}
        for axis in self.axes:
            field, dot, option = axis.partition(".")
            values[axis] = fields[field].get(option) if dot else fields[field]
        return values

    def allows(self, values: Mapping[str, Value]) -> bool:
        """Whether a run may have these values."""
        return all(axis.holds(values.get(name)) for name, axis in self.axes.items())

    def samples(self) -> Iterator[Run]:
        """Yield the runs at the ends of all ranges, with every choice; at most ten thousand.

        If the spec accepts these, it accepts all runs, because intervals limit its fields.
        """
        ends = itertools.product(*(axis.ends for axis in self.axes.values()))
        for values in itertools.islice(ends, _CORNERS_MAX):
            yield self.run(dict(zip(self.axes, values, strict=True)))

    def has_run(self, name: str) -> bool:
        """Whether the name is the number of a run, as folders have it: four digits or more."""
        return name.isdecimal() and name == f"{int(name):04d}"

    def run_of(self, name: str, spec: Spec) -> Run | None:
        """Return the run of this number if the search allows its values; None for another spec."""
        values = self.values_of(spec)
        if not self.allows(values):
            return None
        run = self.run(values, int(name))
        return run if run.spec == spec else None

    def keeps_runs_of(self, former: Search) -> bool:
        """Whether the runs of a former search count for this one.

        They do if only the number of runs differs. The number of workers may also differ, if the
        file gives the number of shards.
        """
        has_shards = "shards" in self.fields or "shards" in self.axes
        workers = self.workers if has_shards else former.workers
        return replace(former, asked=self.asked, workers=workers) == self

    @property
    def shown(self) -> tuple[SearchField, ...]:
        """The searched fields, for tables and figures."""
        return tuple(
            SearchField(name, axis.values)
            if isinstance(axis, Choices)
            else SearchField(name, log=axis.log)
            for name, axis in self.axes.items()
        )

    @classmethod
    def _of(cls, given: Mapping[str, Value]) -> Search:
        fields = dict(given)
        table = fields.pop(_SEARCH, None)
        if table is None:
            refuse_grid(fields)
        if not isinstance(table, dict):
            raise SpecError(_SEARCH, table, "must be a table [search] with the fields to search")
        for field, value in fields.items():
            _check_above(field, value)
        settings = dict(table)
        name = Spec.make({"name": fields.pop("name", None)}).name
        workers = fields.pop("workers", None)
        if workers is not None:
            whole_number("workers", workers, WORKERS_MAX)
        has_task = fields.get("task") is not None or "task" in settings
        goal = _goal(settings.pop("objective", None), has_task=has_task)
        asked = settings.pop("trials", _RUNS)
        seed = settings.pop("seed", 0)
        pruner = Pruner.of(settings.pop("pruner", Pruner().name))
        axes = _axes(settings)
        resolved = {**resolved_defaults(), **fields}
        return cls(
            name=name,
            fields={field: one for field, one in resolved.items() if field not in axes},
            workers=workers,
            axes=axes,
            asked=whole_number(f"{_SEARCH}.trials", asked, _RUNS_MAX),
            seed=whole_number(f"{_SEARCH}.seed", seed, _SEED_MAX, least=0),
            pruner=pruner,
            goal=goal,
        )


def _goal(objective: Value, *, has_task: bool) -> Goal:
    """Read the goal of a search; a user's task may have any metric, which only its code knows."""
    if objective is None:
        return Goal.of(LOSS if has_task else _ACCURACY)
    known = (
        'a metric of the task, as NAME, "min:NAME" or "max:NAME", or' if has_task else "accuracy or"
    )
    accepted = f"must be {known} loss"
    try:
        goal = Goal.of(objective if isinstance(objective, str) else "")
    except ValueError:
        raise SpecError(f"{_SEARCH}.objective", objective, accepted) from None
    if not has_task and goal.metric not in {LOSS, _ACCURACY}:
        raise SpecError(f"{_SEARCH}.objective", objective, accepted)
    return goal


def _axes(table: Mapping[str, Value]) -> dict[str, Axis]:
    """Read the axes, sorted by name; `model_options.dropout = …` may also have quotes.

    We sort them because the sampler draws values field by field. A search must not depend on the
    order of lines in its file, which has no meaning in TOML.
    """
    flat: dict[str, Value] = {}
    for field, value in table.items():
        if field in OPTIONS and isinstance(value, dict):
            flat |= {f"{field}.{option}": one for option, one in value.items()}
        else:
            flat[field] = value
    if not flat:
        accepted = "must name a field, such as learning_rate = { low = 0.001, high = 0.3 }"
        raise SpecError(_SEARCH, dict(table), accepted)
    for field, value in flat.items():
        _check_field(field, value, flat)
    return {field: axis_of(field, value) for field, value in sorted(flat.items())}


def _check_above(field: str, value: Value) -> None:
    if field == "experiment":
        raise SpecError(field, value, "is for `downpour grid`, not for a search")
    if field in _TABLE_FIELDS and field not in Spec.model_fields:
        raise SpecError(field, value, "must come below [search]")
    check_name(field, value, _ABOVE)


def _check_field(field: str, value: Any, beside: Mapping[str, Value]) -> None:
    top, dot, option = field.partition(".")
    known = ", ".join(f"{table}.NAME" for table in OPTIONS)
    if field in _NEVER:
        raise SpecError(f"{_SEARCH}.{field}", value, f"cannot be searched: {_NEVER[field]}")
    if not dot and field not in Spec.model_fields:
        check_name(field, value, _TABLE_FIELDS)
    if dot and (top not in OPTIONS or not option):
        raise SpecError(f"{_SEARCH}.{field}", value, f"no such field; options are {known}")
    if dot and top in beside:
        raise SpecError(f"{_SEARCH}.{field}", value, f"the search already varies {top} as a whole")
