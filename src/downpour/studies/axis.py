"""What a search may choose from: a range of numbers, or a list of values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from downpour.errors import SpecError
from downpour.spec import Spec
from downpour.studies.fields import Value

_BOUNDS = {"low", "high", "log"}
_ACCEPTED = "must be a list of values, or { low = …, high = … } with log = true if need be"


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from `low` to `high`, both included; evenly in their logarithm where `log`.

    `whole` numbers alone, where the field takes no others.
    """

    low: float
    high: float
    log: bool
    whole: bool

    @property
    def ends(self) -> tuple[Value, ...]:
        """What must be accepted for all of it to be."""
        return self.low, self.high

    def holds(self, value: Value) -> bool:
        """Whether a value is one of these."""
        return is_number(value) and bool(self.low <= value <= self.high)

    def to_toml(self) -> dict[str, Value]:
        """Write the range as a file has it."""
        return {"low": self.low, "high": self.high, "log": self.log}


@dataclass(frozen=True, slots=True)
class Choices:
    """Values in no order."""

    values: tuple[Value, ...]

    @property
    def ends(self) -> tuple[Value, ...]:
        """What must be accepted for all of it to be."""
        return self.values

    def holds(self, value: Value) -> bool:
        """Whether a value is one of these."""
        return value in self.values

    def to_toml(self) -> list[Value]:
        """Write the choices as a file has them."""
        return list(self.values)


Axis = Range | Choices


def axis_of(field: str, said: Value) -> Axis:
    """Read what a file says of a field.

    Raises:
        SpecError: it is neither a range nor a list, or an empty one.
    """
    name = f"search.{field}"
    if isinstance(said, list):
        return _choices(name, said)
    if not isinstance(said, dict) or not {"low", "high"} <= said.keys():
        raise SpecError(name, said, _ACCEPTED)
    if unknown := sorted(said.keys() - _BOUNDS):
        raise SpecError(f"{name}.{unknown[0]}", said[unknown[0]], f"no such setting; {_ACCEPTED}")
    return _range(name, field, said)


def _choices(name: str, values: list[Value]) -> Choices:
    if not values:
        raise SpecError(name, values, "must not be an empty list; leave the field out instead")
    if any(one in values[:place] for place, one in enumerate(values)):
        raise SpecError(name, values, "names a value twice")
    return Choices(tuple(values))


def _range(name: str, field: str, said: Mapping[str, Value]) -> Range:
    low, high, log = said["low"], said["high"], said.get("log", False)
    for bound in ("low", "high"):
        if not is_number(said[bound]):
            raise SpecError(f"{name}.{bound}", said[bound], "must be a number")
    if not isinstance(log, bool):
        raise SpecError(f"{name}.log", log, "must be true or false")
    if low >= high:
        raise SpecError(name, dict(said), "low must be below high")
    if log and low <= 0:
        raise SpecError(f"{name}.low", low, "must be above 0 where log = true")
    whole = all(isinstance(bound, int) for bound in (low, high)) and _takes_whole(field)
    return Range(low if whole else float(low), high if whole else float(high), log, whole)


def is_number(value: Value) -> bool:
    """Whether a value is a finite number; true and false are not."""
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    return numeric and math.isfinite(value)


def _takes_whole(field: str) -> bool:
    """Whether a field takes whole numbers alone; an option, of which that is not known, may."""
    schema: Any = Spec.model_json_schema()["properties"].get(field, {})
    kinds = [kind for kind in schema.get("anyOf", [schema]) if kind.get("type") != "null"]
    return "." in field or any(kind.get("type") == "integer" for kind in kinds)
