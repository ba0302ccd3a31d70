"""A grid: spec fields of which any may be a list, and how often each combination is tried → cells.

A list is an axis of the grid. Three kinds of fields need a rule: where a value is itself a list
(`betas`), a list of lists is the axis; `*_options` take a list of tables, and a list inside such a
table is a value; `seed` and `name` are never lists, because the trials make the seeds. Without
`[[experiment]]` the file is one group; with it, each is a group that inherits what stands above.

A cell is one run: a spec with its seed, and a number of workers. Its identity follows from these
alone, so two groups that ask for the same cell share it, and a grid may grow. Nothing here looks
at a clock.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import tomli_w

from downpour.errors import SpecError
from downpour.runtime.spec_file import read_toml
from downpour.spec import Spec, toml_fields

CELLS_MAX = 100_000
_TRIALS_MAX = 10_000
WORKERS_MAX = 100_000
_GROUP = "experiment"
_OWN = ("name", "workers", "trials", _GROUP)
_SINGLE = {"name", "seed"}
_LISTS = {"betas"}
OPTIONS = ("dataset_options", "model_options", "policy_options")
"""The fields whose values are tables."""

Value = Any
"""What a field of the file may hold: whatever TOML can say."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One run: what, and with how many workers; None leaves that to whoever runs it."""

    spec: Spec
    workers: int | None

    @property
    def id(self) -> str:
        """Name the cell: readable, safe as a folder's name, another for every other run."""
        fields = self.spec.model_dump(exclude_defaults=True, exclude={"name"})
        told = json.dumps({**fields, "workers": self.workers}, sort_keys=True)
        digest = hashlib.sha256(told.encode()).hexdigest()[:10]
        size = f"n{self.spec.shards}" if self.workers is None else f"w{self.workers}"
        readable = f"{size}-{self.spec.split}-{self.spec.aggregate}-s{self.spec.seed}"
        return re.sub(r"[^A-Za-z0-9.]+", "-", f"{readable}-{digest}")


@dataclass(frozen=True, slots=True)
class Point:
    """A cell's place in a group: the values on its axes, and which trial it is, from 1."""

    group: str
    values: tuple[Value, ...]
    trial: int
    cell: Cell


@dataclass(frozen=True)
class Group:
    """Fields of which some are lists: the axes, in the order of the file."""

    name: str
    fields: Mapping[str, Value]

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """Name the fields that are axes."""
        return tuple(field for field, value in self.fields.items() if _is_axis(field, value))

    def settings(self) -> Iterator[tuple[Value, ...]]:
        """Yield every combination of the axes' values; the last axis changes fastest."""
        return itertools.product(*(self.fields[axis] for axis in self.axes))

    def cell(self, values: Sequence[Value], trial: int) -> Cell:
        """Make the cell at a place of the grid.

        Raises:
            SpecError: the fields do not fit, alone or together.
        """
        fields = {**self.fields, **dict(zip(self.axes, values, strict=True))}
        workers = fields.pop("workers", None)
        if workers is None and fields.get("shards") is None:
            raise SpecError("workers", workers, "must be given, or shards")
        spec = Spec.make({"shards": workers, **fields})
        return Cell(spec.replace(seed=spec.seed + trial - 1) if trial > 1 else spec, workers)


@dataclass(frozen=True)
class Grid:
    """What an experiment file asks for.

    Raises:
        SpecError: from `from_toml` and `make`; names the field and what is accepted.
    """

    name: str
    trials: int
    groups: tuple[Group, ...]

    @classmethod
    def from_toml(cls, text: str) -> Grid:
        """Read a grid; every cell of it is valid."""
        return cls.make(toml_fields(text))

    @classmethod
    def from_file(cls, path: Path) -> Grid:
        """Read the file that a user wrote."""
        return cls.make(read_toml(path))

    @classmethod
    def make(cls, fields: Mapping[str, Value]) -> Grid:
        """Make a grid of what a file says; every cell of it is valid."""
        grid = cls._of(fields)
        for group in grid.groups:
            for values in group.settings():
                group.cell(values, grid.trials)
        return grid

    def to_toml(self) -> str:
        """Write the grid with every field resolved; `from_toml` reads it back to an equal one."""
        groups = [{**group.fields, "name": group.name} for group in self.groups]
        return tomli_w.dumps({"name": self.name, "trials": self.trials, _GROUP: groups})

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """List all places: trial 1 of every setting before trial 2 of any."""
        return tuple(
            Point(group.name, values, trial, group.cell(values, trial))
            for trial in range(1, self.trials + 1)
            for group in self.groups
            for values in group.settings()
        )

    @cached_property
    def cells(self) -> dict[str, Cell]:
        """Return the cells by identity, in the order in which to run them."""
        return {point.cell.id: point.cell for point in self.points}

    @classmethod
    def _of(cls, fields: Mapping[str, Value]) -> Grid:
        if "search" in fields:
            raise SpecError("search", "[search]", "is what `downpour tune` takes, with this file")
        for field, value in fields.items():
            check_name(field, value, _OWN)
        common = dict(fields)
        groups = common.pop(_GROUP, None)
        name = common.pop("name", None)
        Spec.make({"name": name})  # judges it as it does any other
        trials = whole_number("trials", common.pop("trials", 1), _TRIALS_MAX)
        if groups is None:
            groups = [{"name": name}]
        if not (isinstance(groups, list) and groups and all(isinstance(g, dict) for g in groups)):
            raise SpecError(_GROUP, groups, f"must be tables: [[{_GROUP}]], once for each")
        made = tuple(_group(name, common, own, number) for number, own in enumerate(groups, 1))
        names = [group.name for group in made]
        if len(set(names)) < len(names):
            raise SpecError(f"{_GROUP}.name", names, "must be another for each")
        cells = trials * sum(math.prod(len(g.fields[axis]) for axis in g.axes) for g in made)
        if cells > CELLS_MAX:
            raise SpecError("trials", trials, f"makes {cells} cells; at most {CELLS_MAX} are run")
        return cls(name=name, trials=trials, groups=made)


def _group(grid: str, common: Mapping[str, Value], own: Mapping[str, Value], number: int) -> Group:
    """Resolve a group: its own fields over the common ones over the defaults."""
    for field, value in own.items():
        check_name(field, value, _OWN)
        if field in ("trials", _GROUP):
            raise SpecError(field, value, f"must stand above the first [[{_GROUP}]]")
    given = {**common, **own}
    name = given.pop("name", f"{_GROUP}-{number}")
    Spec.make({"name": name})
    for field, value in given.items():
        _check(field, value)
    # First what was given, so that the axes keep their order; then the defaults. Tables come last,
    # as they do in whatever `to_toml` writes, so that a grid read back has its axes in this order.
    defaults = {field: value for field, value in _defaults().items() if field not in given}
    fields = {**given, **defaults, "name": grid}
    return Group(name, dict(sorted(fields.items(), key=lambda item: item[0] in OPTIONS)))


def _defaults() -> dict[str, Value]:
    known = Spec().model_dump(mode="json", exclude={"name"})
    return {field: value for field, value in known.items() if value not in (None, {})}


def _check(field: str, value: Value) -> None:
    """Refuse what no combination could mend.

    Raises:
        SpecError: the list is empty, names a value twice, or the field takes none.
    """
    if value == [] or (field in _LISTS and isinstance(value, list) and [] in value):
        raise SpecError(field, value, "must not be an empty list; leave the field out instead")
    if field in _SINGLE and isinstance(value, list):
        raise SpecError(field, value, "must be one value; each trial adds one to the seed")
    values = value if _is_axis(field, value) else [value]
    if any(one in values[:place] for place, one in enumerate(values)):
        raise SpecError(field, value, "names a value twice")
    if field == "workers":
        for one in values:
            whole_number(field, one, WORKERS_MAX)


def _is_axis(field: str, value: Value) -> bool:
    if not isinstance(value, list):
        return False
    return all(isinstance(one, list) for one in value) if field in _LISTS else True


def check_name(field: str, value: Value, own: Sequence[str]) -> None:
    """Refuse what is neither a field of the spec nor one of a file's own, and say which was meant.

    Raises:
        SpecError: there is no such field.
    """
    if field in own or field in Spec.model_fields:
        return
    meant = difflib.get_close_matches(field, [*own, *Spec.model_fields], n=1)
    if meant and meant[0] in own:
        raise SpecError(field, value, f"no such field; did you mean {meant[0]}?")
    Spec.make({field: value})


def whole_number(field: str, value: Value, most: int, *, least: int = 1) -> int:
    """Return a value that is a whole number within limits.

    Raises:
        SpecError: it is none.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise SpecError(field, value, f"must be a whole number from {least} to {most}")
    return value
