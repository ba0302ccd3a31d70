"""Checks that an array fits into free memory, before reading its file."""

from __future__ import annotations

import math
from collections.abc import Sequence

from downpour.base.errors import SpecError
from downpour.host.memory import free_memory

_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")


def check_room(
    shape: Sequence[int], item_bytes: int, *, field: str, value: object, what: str = ""
) -> int:
    """Return how many bytes an array of this shape takes; `what` is that in words.

    Raises:
        SpecError: names `field` and `value`, where that is more than is free on this machine.
    """
    needed_bytes = math.prod(shape) * item_bytes
    free_bytes = free_memory()
    if needed_bytes > free_bytes:
        free = f"only {_shown(free_bytes)} are free"
        accepted = f"{what}needs {_shown(needed_bytes)} of memory, but {free}"
        raise SpecError(field, value, accepted)
    return needed_bytes


def _shown(count_bytes: int) -> str:
    power = min(int(math.log(max(count_bytes, 1), 1000)), len(_UNITS) - 1)
    return f"{count_bytes / 1000**power:,.3g} {_UNITS[power]}"
