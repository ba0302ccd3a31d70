"""An axis of a search: a range of numbers, or a list of values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from downpour.base.errors import SpecError
from downpour.core.spec import TABLES, Spec
from downpour.experiments.studies.fields import Value

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
    """Read a field's axis from a file.

    Raises:
        SpecError: the axis is neither a range nor a list, or it is an empty list.
    """
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
