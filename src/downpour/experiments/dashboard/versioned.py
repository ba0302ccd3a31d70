"""Rows that know which line of the record changed them last."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Row = Sequence[Any]
"""A row as the page receives it; its first columns are its key."""


class RowTable(Generic[Key]):
    """A table whose rows we replace and never change.

    Args:
        rows_max: how many rows it keeps; the row with the oldest change leaves first. None: all.
    """

    def __init__(self, rows_max: int | None = None) -> None:
        self._rows_max = rows_max
        self._rows: dict[Key, tuple[int, Row]] = {}  # the row with the newest change comes last

    def __len__(self) -> int:
        return len(self._rows)

    def put(self, key: Key, row: Row, line: int) -> None:
        """Set a row that a line of the record has changed; setting an equal row is no change."""
        before = self._rows.get(key)
        if before is not None:
            if before[1] == row:
                return
            del self._rows[key]
        self._rows[key] = line, row
        if self._rows_max is not None and len(self._rows) > self._rows_max:
            del self._rows[next(iter(self._rows))]

    def since(self, after: int, upto: int) -> list[Row]:
        """Return the rows that changed last after line `after`, up to line `upto`."""
        found = []
        for line, row in reversed(self._rows.values()):
            if line <= after:
                break
            if line <= upto:
                found.append(row)
        return found[::-1]
