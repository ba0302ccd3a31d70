"""Rows of the page's tables, and attempts in columns, because a long experiment has millions."""

import zlib
from array import array
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

Fields = Mapping[str, Any]
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


BLOCK = 4096
_LOOSE_BLOCKS = 4
"""The newest blocks stay unpacked, because viewers ask for their rows twice a second."""

OUTCOMES = (None, "trained", "last", "moved", "stopped", "failed", "stopped")
"""How an attempt ended, by its number in the column; None means that it has not ended."""
LAST, STOPPED, NEEDLESS = 2, 4, 6
"""`NEEDLESS` is a stop until a line says when the attempt really ended, or that it continues."""

_ATTEMPT = "worker", "round", "shard", "attempt", "begin", "from_step"
_END = "end", "outcome"
_FORESEEN = "at", "done", "q10", "q50", "q90"
_CODES = {
    **dict.fromkeys(("worker", "round", "shard", "attempt", "from_step"), "i"),
    "outcome": "b",
}
_NAMES = *_ATTEMPT, "born", *_END, "ended", *_FORESEEN, "foreseen"
_COLUMNS = {name: _CODES.get(name, "I") for name in _NAMES}
"""Each column and its type. `born`, `ended` and `foreseen` are the lines of the last changes.

Seconds and shares are whole thousandths, because compressed floats would take three times the room.
"""
_MOST = 4_000_000.0
"""The seconds that a column can hold: 46 days."""
_NOTHING = (0,) * 9
"""The values of a new attempt in the columns from `end` on."""


class _Block:
    """Up to `BLOCK` attempts, with the lines of its first attempt and of its last change."""

    def __init__(self, line: int) -> None:
        self.begun = line
        self.count = 0
        self.open = 0
        self.changed = 0
        self._columns: dict[str, Any] = {name: array(code) for name, code in _COLUMNS.items()}
        self.packed = b""

    def columns(self) -> dict[str, Any]:
        """Return the columns for reading; for a packed block, they are a copy."""
        return self._unpacked() if self.packed else self._columns

    def pack(self) -> None:
        """Compress the block, which is not compressed yet."""
        content = b"".join(column.tobytes() for column in self._columns.values())
        self.packed, self._columns = zlib.compress(content, level=6), {}

    def unpack(self) -> dict[str, Any]:
        """Return the columns for writing."""
        if self.packed:
            self._columns, self.packed = self._unpacked(), b""
        return self._columns

    def _unpacked(self) -> dict[str, Any]:
        content, offset = zlib.decompress(self.packed), 0
        columns = {}
        for name, code in _COLUMNS.items():
            column = columns[name] = array(code)
            size = column.itemsize * self.count
            column.frombytes(content[offset : offset + size])
            offset += size
        return columns


class AttemptColumns:
    """All attempts of an experiment, in blocks. A `line` is the number of a line of the record.

    An attempt takes tens of bytes, and its number is its index. Blocks of a few thousand attempts
    hold the columns. Once all attempts of a block have ended, we compress it. We then unpack it
    only for a new viewer.
    """

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._loose: list[_Block] = []
        self.count = 0

    def add(self, values: tuple[int, int, int, int, float, int], line: int) -> int:
        """Add an attempt and return its number.

        Args:
            values: worker, round, shard, attempt, begin, and the step that it continues from.
            line: the line that reports it.
        """
        *task, begin, step = values
        if self.count % BLOCK == 0:
            self._begin_block(line)
        block = self._blocks[-1]
        row = (*task, _thousandths(begin), step, line, *_NOTHING)
        for column, value in zip(block.unpack().values(), row, strict=True):
            column.append(value)
        block.count += 1
        block.open += 1
        block.changed = line
        self.count += 1
        return self.count - 1

    def replace(self, number: int, worker: int, begin: float, line: int) -> None:
        """Let an attempt begin once more, if an earlier manager had begun it before."""
        _, columns, place = self._changing(number, line)
        columns["worker"][place], columns["begin"][place] = worker, _thousandths(begin)
        columns["born"][place] = line

    def end(self, number: int, at: float, outcome: int, line: int) -> None:
        """Let an attempt end; an `outcome` of 0 opens it again."""
        block, columns, place = self._changing(number, line)
        block.open += (outcome == 0) - (columns["outcome"][place] == 0)
        columns["end"][place], columns["outcome"][place] = _thousandths(at), outcome
        columns["ended"][place] = line

    def foresee(self, number: int, forecast: Sequence[float], line: int) -> None:
        """Set an attempt's forecast: elapsed seconds, the finished share, three quantiles."""
        _, columns, place = self._changing(number, line)
        for name, value in zip(_FORESEEN, forecast, strict=True):
            columns[name][place] = _thousandths(value)
        columns["foreseen"][place] = line

    def value(self, number: int, name: str) -> Any:
        """Return an attempt's value in a column."""
        return self._blocks[number // BLOCK].columns()[name][number % BLOCK]

    def seconds(self, number: int, name: str) -> float:
        """Return a time of an attempt, in seconds."""
        return float(self.value(number, name)) / 1000

    def find(self, first: int, last: int, task: tuple[int, int, int]) -> int | None:
        """Return the number of an attempt (round, shard, attempt) within a range of numbers."""
        for place in range(first // BLOCK, last // BLOCK + 1):
            columns = self._blocks[place].columns()
            keys = zip(columns["round"], columns["shard"], columns["attempt"], strict=True)
            for offset, key in enumerate(keys):
                if key == task:
                    return place * BLOCK + offset
        return None

    def since(self, after: int, upto: int) -> tuple[list[Row], list[Row], list[Row]]:
        """Return the rows of attempts, ends and forecasts that changed after line `after`."""
        attempts: list[Row] = []
        ends: list[Row] = []
        forecasts: list[Row] = []
        for place, block in enumerate(self._blocks):
            if block.begun > upto:
                break
            if block.changed <= after:
                continue
            first, columns = place * BLOCK, block.columns()
            attempts += [
                (first + n, worker, number + 1, shard, attempt, _short(begin), step)
                for n, (worker, number, shard, attempt, begin, step) in _changed(
                    columns, "born", _ATTEMPT, after, upto
                )
            ]
            ends += [
                (first + n, _short(end) if outcome else None, OUTCOMES[outcome])
                for n, (end, outcome) in _changed(columns, "ended", _END, after, upto)
            ]
            forecasts += [
                (first + n, *map(_short, forecast))
                for n, forecast in _changed(columns, "foreseen", _FORESEEN, after, upto)
            ]
        return attempts, ends, forecasts

    def _begin_block(self, line: int) -> None:
        block = _Block(line)
        self._blocks.append(block)
        self._loose = [loose for loose in self._loose if not loose.packed]
        for loose in self._loose[:-_LOOSE_BLOCKS]:
            if not loose.open:
                loose.pack()
        self._loose.append(block)

    def _changing(self, number: int, line: int) -> tuple[_Block, dict[str, Any], int]:
        block = self._blocks[number // BLOCK]
        if block.packed:
            self._loose.insert(0, block)
        block.changed = line
        return block, block.unpack(), number % BLOCK


def _changed(
    columns: dict[str, Any], lines: str, names: Sequence[str], after: int, upto: int
) -> Iterator[tuple[int, list[Any]]]:
    """Yield the place and the values of each attempt that a line in a range has changed."""
    several = [columns[name] for name in names]
    for place, line in enumerate(columns[lines]):
        if after < line <= upto:
            yield place, [column[place] for column in several]


def _thousandths(value: float) -> int:
    # Twice as fast as `min` and `max`, and a record has hundreds of thousands of such numbers.
    return round((value if 0.0 <= value <= _MOST else min(max(0.0, value), _MOST)) * 1000)


def _short(thousandths: int) -> float:
    """Return a number in few characters: without a point if it is whole."""
    return thousandths // 1000 if thousandths % 1000 == 0 else thousandths / 1000
