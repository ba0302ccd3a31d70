"""A search: fields of the spec, axes to vary, and a number of runs; it yields possible runs.

The file is a spec with a `[search]` table, which gives an axis for each searched field. The search
ignores the spec's own value of such a field. The sampler chooses the values of a run. This module
defines the possible values, and the run that they make. The file calls the number of runs `trials`.
Nothing here reads a clock.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import tomli_w

from downpour.base.errors import SpecError
from downpour.base.evaluations import LOSS, Goal
from downpour.core.resolve import resolve
from downpour.core.spec import Spec
from downpour.experiments.reading.search_result import SearchField
from downpour.experiments.studies.axis import Axis, Choices, axis_of
from downpour.experiments.studies.fields import (
    OPTIONS,
    WORKERS_MAX,
    Value,
    check_name,
    resolved_defaults,
    whole_number,
)
from downpour.experiments.studies.pruner import Pruner
from downpour.experiments.studies.study import Run, Study
from downpour.files.spec_file import refuse_grid
from downpour.learning.training.trainer import trainer_of

SEARCH_FILE = "tune.toml"
_SEARCH = "search"
_ABOVE = ("name", "workers", _SEARCH)
_SETTINGS = ("trials", "seed", "pruner", "objective")
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
        """Make the run with these values in the searched fields.

        Raises:
            SpecError: the values are invalid, alone or together.
        """
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
    if field in _SETTINGS and field not in Spec.model_fields:
        raise SpecError(field, value, "must come below [search]")
    check_name(field, value, _ABOVE)


def _check_field(field: str, value: Any, beside: Mapping[str, Value]) -> None:
    top, dot, option = field.partition(".")
    known = ", ".join(f"{table}.NAME" for table in OPTIONS)
    if field in _NEVER:
        raise SpecError(f"{_SEARCH}.{field}", value, f"cannot be searched: {_NEVER[field]}")
    if not dot and field not in Spec.model_fields:
        check_name(field, value, _SETTINGS)
    if dot and (top not in OPTIONS or not option):
        raise SpecError(f"{_SEARCH}.{field}", value, f"no such field; options are {known}")
    if dot and top in beside:
        raise SpecError(f"{_SEARCH}.{field}", value, f"the search already varies {top} as a whole")
