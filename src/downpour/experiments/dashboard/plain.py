"""Plain fields of a line, checked while they are read.

The frequent kinds of lines are read without pydantic, which would take most of the time of opening
a long record. What these functions take is what the lines' own types take, as far as it is written
by `to_fields`; all else raises ValueError.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

Fields = Mapping[str, Any]
_WHOLE_MAX = 2**31 - 1


def whole(value: Any) -> int:
    """Return a whole number from 0 up that a column can hold."""
    if type(value) is not int or not 0 <= value <= _WHOLE_MAX:
        raise ValueError(f"not a whole number: {value!r:.50}")
    return value


def number(value: Any) -> float:
    """Return a number that is finite."""
    if type(value) not in {int, float} or not math.isfinite(value):
        raise ValueError(f"not a number: {value!r:.50}")
    return float(value)


def measured(value: Any) -> float | None:
    """Return a number; None for one that was NaN or infinite, which JSON has no words for."""
    return None if value is None else number(value)


def text(value: Any) -> str:
    """Return a text."""
    if type(value) is not str:
        raise ValueError(f"not a text: {value!r:.50}")
    return value


def task_of(fields: Fields) -> tuple[int, int, int]:
    """Return the round, the shard and the attempt that a line is about."""
    return whole(fields["round"]), whole(fields["shard"]), whole(fields["attempt"])


def quantiles(fields: Fields) -> tuple[float, float, float] | None:
    """Return the forecast of a line; None without one."""
    found = [fields.get(f"{name}_seconds") for name in ("q10", "q50", "q90")]
    if any(value is None for value in found):
        return None
    low, middle, high = map(number, found)
    return low, middle, high
