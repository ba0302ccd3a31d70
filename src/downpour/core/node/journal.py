"""The rules of a journal: which lines go to which segment, and when a segment may go.

An experiment's journal holds what must survive of it: numbered lines in *segments*. Lines are only
appended, and `commit` returns when they are durable. A manager begins a segment of its own, and
another one after a write that failed. It then writes all lines that are not known to be durable
again, under the same numbers, so that a torn line in the middle is repeated in the segment after
it. Segments are read in the order of their terms and numbers. Of two lines with one number the
later counts, and where a later term's lines begin, those of earlier terms end.

A manager that takes up a journal writes what it has read once more, before its own first line.
Otherwise an earlier manager that does not know that it was replaced could remove the segments on
which the new lines build.

A checkpoint begins the journal anew: submission, preparation and checkpoint are published together
as one segment, which is there whole or not at all, and the segments before it are removed. A reader
that finds these still there begins at the last segment that has an entry of number 1.

This module does not know where segments lie: `files/records/journal.py` has them on a disk, the
simulator in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from downpour.base.errors import FileCorrupt, SharedDirectoryError, StoreError
from downpour.core.scheduler import Checkpoint, Entry
from downpour.core.scheduler import events as on

Segment = tuple[int, int]
"""The term of the manager that wrote it, and its number among those of that manager, from 1."""

# What a checkpoint does not replace: the spec, and the name and the sizes of what was prepared.
_HEAD = on.ExperimentSubmitted, on.Prepared


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """An entry with its number (from 1), its time, and the lines that the record had by then.

    `order` is its place among the entries of all experiments. The first line of a journal has the
    `cluster` whose manager writes it; earlier versions knew no clusters, and wrote none.
    """

    number: int
    order: int
    at_seconds: float
    record_lines: int
    entry: Entry
    cluster: str = ""


class SegmentStorage(Protocol):
    """Where the segments of one journal lie.

    Every method raises StoreError if a file cannot be used, and SharedDirectoryError if the
    directory cannot. The operation may have been carried out all the same, or a part of it.
    """

    place: str
    """Where that is, for error messages."""

    def segments(self) -> Sequence[Segment]:
        """Return the segments that exist, in the order in which they are read."""
        ...

    def append(self, segment: Segment, lines: Sequence[Line], *, durably: bool) -> None:
        """Append to a segment, which is created if it does not exist.

        With `durably` all that was appended to it survives the machine when this returns.
        """
        ...

    def publish(self, segment: Segment, lines: Sequence[Line]) -> None:
        """Publish a segment, whole or not at all; it is durable when this returns."""
        ...

    def remove(self, segments: Sequence[Segment]) -> None:
        """Remove segments; a reader ignores those that stay all the same."""
        ...


class JournalWriter:
    """Appends to one experiment's journal, under one manager's term; not thread-safe.

    Args:
        storage: where its segments lie.
        term: the manager's term, so that no two managers write to one segment.
        lines: what the journal holds already.
        cluster: the name of the manager's cluster.
    """

    def __init__(
        self, storage: SegmentStorage, term: int, lines: Sequence[Line] = (), *, cluster: str = ""
    ) -> None:
        self._storage = storage
        self._term = term
        self._cluster = cluster
        self._head = [line for line in lines if isinstance(line.entry, _HEAD)]
        self._next_line = len(lines) + 1
        self._anew = [self._marked(line) for line in lines]
        self._last_segment = 0
        self._segment: Segment | None = None
        self._unwritten: list[Line] = []
        self._unconfirmed: list[Line] = []

    def append(self, order: int, at_seconds: float, record_lines: int, entry: Entry) -> None:
        """Add an entry; it is not durable before the next `commit`."""
        line = Line(
            number=self._next_line,
            order=order,
            at_seconds=at_seconds,
            record_lines=record_lines,
            entry=entry,
        )
        if isinstance(entry, _HEAD):
            self._head.append(line)
        self._unwritten.append(self._marked(line))
        self._next_line += 1

    def begin_anew(
        self, order: int, at_seconds: float, record_lines: int, entry: Checkpoint
    ) -> None:
        """Begin the journal anew with a checkpoint, which replaces the entries before it."""
        self._next_line = 1
        self._unwritten, self._unconfirmed = [], []
        head, self._head = self._head, []
        # Each manager that takes the experiment up adds a `Prepared`, which repeats the first one.
        for line in head[:2]:
            self.append(line.order, line.at_seconds, line.record_lines, line.entry)
        self.append(order, at_seconds, record_lines, entry)
        self._anew, self._unwritten = self._unwritten, []

    def commit(self, *, durably: bool = True) -> None:
        """Write what was appended; it survives this process then, and with `durably` the machine.

        Raises:
            SharedDirectoryError: the directory fails, or another manager has taken over; calling
                again writes all lines that are not known to be durable into a new segment.
            StoreError: such a file cannot be written.
        """
        if self._anew:
            self._publish_anew()
        if not self._unwritten and not (durably and self._unconfirmed):
            return
        if self._segment is None:
            self._segment = self._next_segment()
        try:
            self._storage.append(self._segment, self._unwritten, durably=durably)
        except StoreError:
            # A new segment, because this one may end in half a line, and a line appended to that
            # would be lost with it.
            self._segment = None
            self._unwritten = self._unconfirmed + self._unwritten
            self._unconfirmed = []
            raise
        self._unconfirmed = [] if durably else self._unconfirmed + self._unwritten
        self._unwritten = []

    @property
    def under_way(self) -> tuple[Segment, Sequence[Line]]:
        """What the next commit appends, and where; a crash may leave a part of it."""
        # None of what is published, because a segment is published whole or not at all.
        lines = [] if self._anew else self._unwritten
        return self._segment or (self._term, self._last_segment + 1), lines

    def _marked(self, line: Line) -> Line:
        return replace(line, cluster=self._cluster) if line.number == 1 else line

    def _publish_anew(self) -> None:
        self._segment = None
        former = self._storage.segments()
        # A manager that was replaced must not remove the segments that its successor has read.
        if any(term > self._term for term, _ in former):
            raise SharedDirectoryError(self._storage.place, "another manager has taken over")
        self._storage.publish(self._next_segment(), self._anew)
        self._anew = []
        # Last, because a crash before the new segment is there would leave no journal at all.
        self._storage.remove(former)

    def _next_segment(self) -> Segment:
        self._last_segment += 1
        return self._term, self._last_segment


def in_order(parts: Iterable[tuple[int, Sequence[Line]]]) -> list[Line]:
    """Put the lines of a journal in order.

    A manager that has lost its lock may go on writing beside its successor. From the successor's
    first line on, the lines of the earlier manager do not count.

    Args:
        parts: a segment's term and whole lines, in the order in which they are read.

    Raises:
        FileCorrupt: an entry is missing, and later ones are there.
    """
    by_number: dict[int, Line] = {}
    latest = 0
    for term, lines in parts:
        # Where a later term begins, or the journal anew, what was read from that number on is void.
        if lines and (term > latest or lines[0].number == 1):
            latest = term
            first = lines[0].number
            by_number = {number: line for number, line in by_number.items() if number < first}
        by_number.update((line.number, line) for line in lines)
    # Lines that are missing at the end cannot be noticed: they may never have been written.
    for number in range(1, max(by_number, default=0) + 1):
        if number not in by_number:
            raise FileCorrupt("journal", f"entry {number} is missing or altered")
    return [by_number[number] for number in sorted(by_number)]
