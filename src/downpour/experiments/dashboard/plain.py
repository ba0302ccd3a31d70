"""Checks the plain fields of a line while reading them.

We read the frequent kinds of lines without pydantic, which would take most of the time of opening a
long record. These functions accept the same values as the lines' own types, as `to_fields` writes
them. For anything else they raise ValueError.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Fields = Mapping[str, Any]
_WHOLE_MAX = 2**31 - 1
_EXACT = 2**53


def whole(value: Any) -> int:
    """Return a whole number, at least 0, that a column can hold."""
    if type(value) is not int or not 0 <= value <= _WHOLE_MAX:
        raise ValueError(f"not a whole number: {value!r:.50}")
    return value


def number(value: Any) -> float:
    """Return a finite number."""
    if type(value) is float and value - value == 0:  # neither NaN nor infinite
        return value
    if type(value) is int and -_EXACT <= value <= _EXACT:
        return float(value)
    raise ValueError(f"not a number: {value!r:.50}")


def measured(value: Any) -> float | None:
    """Return a number; None for NaN or infinity, which JSON cannot express."""
    return None if value is None else number(value)


def text(value: Any) -> str:
    """Return a text."""
    if type(value) is not str:
        raise ValueError(f"not a text: {value!r:.50}")
    return value


def task_of(fields: Fields) -> tuple[int, int, int]:
    """Return the round, the shard and the attempt of a line."""
    return whole(fields["round"]), whole(fields["shard"]), whole(fields["attempt"])


def quantiles(fields: Fields) -> tuple[float, float, float] | None:
    """Return the forecast of a line; None if it has none."""
    low, middle, high = map(fields.get, ("q10_seconds", "q50_seconds", "q90_seconds"))
    if low is None or middle is None or high is None:
        return None
    return number(low), number(middle), number(high)
