"""The rules of a journal: the segment for each line, and the lines that count.

An experiment's journal holds all that happened in it: numbered lines in *segments*. Lines are only
appended, no segment is ever removed, and `commit` returns when the lines that must last are
durable. Each manager begins its own segment, and another one after a failed write. It then rewrites
all lines that may not be durable, under the same numbers. So the next segment repeats a torn line
in the middle. Segments are read in the order of their terms and numbers. Of two lines with one
number the later counts, and where a later term's lines begin, those of earlier terms end. So a
manager that takes up a journal writes a line at once (`TakenUp`): what an earlier manager that does
not know of it still appends does not count.

A checkpoint begins a segment, too, and its line carries the submission and the preparation. Replay
begins there, so a start reads the last segments alone (`since_checkpoint`). The record that people
read is projected from all lines (`in_order`, `files/records/view.py`).

This module does not know where segments lie: `files/records/journal.py` has them on a disk, the
simulator in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from downpour.base.errors import FileCorrupt, StoreError
from downpour.core.scheduler import Checkpoint, Journaled, TakenUp
from downpour.core.scheduler import events as on

Segment = tuple[int, int]
"""The term of the manager that wrote it, and its number among those of that manager, from 1."""

Part = tuple[int, Sequence["Line"]]
"""A segment's term and whole lines."""

# Entries that a checkpoint does not replace: the spec, and the name and sizes of the prepared data.
_HEAD = on.ExperimentSubmitted, on.Prepared


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """An entry with its number (from 1) and its time.

    `order` is its place among the entries of all experiments. The first line of a journal has the
    `cluster` whose manager writes it; the first versions knew no clusters, and wrote none. The line
    of a checkpoint has the submission and the preparation as its `head`. Earlier versions kept the
    record in a file, and said with each line how many `record_lines` that had by then.
    """

    number: int
    order: int
    at_seconds: float
    entry: Journaled
    cluster: str = ""
    head: tuple[Line, ...] = ()
    record_lines: int | None = None


class SegmentStorage(Protocol):
    """The place of one journal's segments."""

    def append(self, segment: Segment, lines: Sequence[Line], *, durably: bool) -> None:
        """Append to a segment, which is created if it does not exist.

        With `durably` all that was appended to it survives the machine when this returns.

        Raises:
            SharedDirectoryError: the directory fails; a part may have been appended all the same.
            StoreError: such a file cannot be used.
        """
        ...


class JournalWriter:
    """Appends to one experiment's journal, under one manager's term; not thread-safe.

    Args:
        storage: where its segments lie.
        term: the manager's term, so that no two managers write to one segment.
        lines: what replay needs of the journal (`since_checkpoint`), if it is taken up.
        cluster: the name of the manager's cluster.
        record: the record of an earlier version, which the journal takes in.
    """

    def __init__(
        self,
        storage: SegmentStorage,
        term: int,
        lines: Sequence[Line] = (),
        *,
        cluster: str = "",
        record: Sequence[dict[str, Any]] = (),
    ) -> None:
        self._storage = storage
        self._term = term
        self._cluster = cluster
        self._head = [self._marked(line) for line in lines if isinstance(line.entry, _HEAD)]
        self._next_line = lines[-1].number + 1 if lines else 1
        self._last_segment = 0
        self._segment: Segment | None = None
        self._unwritten: list[Line] = []
        self._unconfirmed: list[Line] = []
        if lines:
            self.append(lines[-1].order, lines[-1].at_seconds, TakenUp(record=tuple(record)))

    def append(self, order: int, at_seconds: float, entry: Journaled) -> None:
        """Add an entry; it is not durable before the next `commit`."""
        line = self._add(order, at_seconds, entry)
        if isinstance(entry, _HEAD):
            self._head.append(line)

    def begin_anew(self, order: int, at_seconds: float, entry: Checkpoint) -> None:
        """Add a checkpoint, in a segment with which replay begins from now on."""
        self._turn_over()
        # Each manager that takes the experiment up adds a `Prepared`, which repeats the first one.
        self._add(order, at_seconds, entry, tuple(self._head[:2]))

    def commit(self, *, durably: bool = True) -> None:
        """Write the appended lines; they then survive this process, and with `durably` the machine.

        Raises:
            SharedDirectoryError: the directory fails; calling again writes all lines that are not
                known to be durable into a new segment.
            StoreError: such a file cannot be written.
        """
        if not self._unwritten and not (durably and self._unconfirmed):
            return
        if self._segment is None:
            self._last_segment += 1
            self._segment = self._term, self._last_segment
        try:
            self._storage.append(self._segment, self._unwritten, durably=durably)
        except StoreError:
            # This segment may end in half a line, and a line appended to that would be lost with
            # it.
            self._turn_over()
            raise
        self._unconfirmed = [] if durably else self._unconfirmed + self._unwritten
        self._unwritten = []

    @property
    def under_way(self) -> tuple[Segment, Sequence[Line]]:
        """The text and the segment of the next commit; a crash may leave a part of it."""
        return self._segment or (self._term, self._last_segment + 1), self._unwritten

    def _add(
        self, order: int, at_seconds: float, entry: Journaled, head: tuple[Line, ...] = ()
    ) -> Line:
        line = self._marked(
            Line(number=self._next_line, order=order, at_seconds=at_seconds, entry=entry, head=head)
        )
        self._unwritten.append(line)
        self._next_line += 1
        return line

    def _marked(self, line: Line) -> Line:
        return replace(line, cluster=self._cluster) if line.number == 1 else line

    def _turn_over(self) -> None:
        """Go on in a new segment, which repeats the lines that are not known to be durable."""
        self._segment = None
        self._unwritten = self._unconfirmed + self._unwritten
        self._unconfirmed = []


def in_order(parts: Iterable[Part]) -> list[Line]:
    """Put the lines of a whole journal in order.

    A manager that has lost its lock may go on writing beside its successor. From the successor's
    first line on, the lines of the earlier manager do not count.

    Args:
        parts: the segments, in the order in which they are read.

    Raises:
        FileCorrupt: an entry is missing, and later ones are there.
    """
    return _unbroken(_counting(parts), 1)


def since_checkpoint(parts: Iterable[Part]) -> list[Line]:
    """Put the lines in order that replay needs: from the last checkpoint on, and its head.

    Args:
        parts: the last segments, in the order in which they are read; all of them if they have no
            checkpoint that counts (`has_checkpoint`).

    Raises:
        FileCorrupt: as `in_order`.
    """
    by_number = _counting(parts)
    first = max((number for number, line in by_number.items() if line.head), default=1)
    lines = _unbroken(by_number, first)
    return [*lines[0].head, *lines] if lines else []


def has_checkpoint(parts: Iterable[Part]) -> bool:
    """Whether replay needs no segment before these."""
    return any(line.head for line in _counting(parts).values())


def _counting(parts: Iterable[Part]) -> dict[int, Line]:
    by_number: dict[int, Line] = {}
    latest = 0
    for term, lines in parts:
        # A later term voids all entries from its first number on. Earlier versions
        # began at 1 with each checkpoint, and removed what was before it.
        if lines and (term > latest or lines[0].number == 1):
            latest = term
            first = lines[0].number
            by_number = {number: line for number, line in by_number.items() if number < first}
        by_number.update((line.number, line) for line in lines)
    return by_number


def _unbroken(by_number: dict[int, Line], first: int) -> list[Line]:
    # Lines that are missing at the end cannot be noticed: they may never have been written.
    last = max(by_number, default=0)
    for number in range(first, last + 1):
        if number not in by_number:
            raise FileCorrupt("journal", f"entry {number} is missing or altered")
    return [by_number[number] for number in range(first, last + 1)]
