"""The rules of a journal: which lines go to which segment, and when a segment may go.

An experiment's journal is what must not be forgotten of it: numbered lines, kept in *segments*.
Lines are only appended, and `commit` returns when they are durable. A manager begins a segment of
its own, and another one after a write that failed: what had not been confirmed is then written
again under the same numbers, so that a torn line in the middle is made good by the segment after
it. Segments are read in the order of their terms and numbers; of two lines with one number the
later counts, and with the first line of a later term end those of the terms before it.

A manager that takes up a journal writes what it has read before its own first line, so that nothing
which another one writes or removes meanwhile can take the ground from under it.

A checkpoint begins the journal anew: submission, preparation and checkpoint are published together
as a segment, so that it is there whole or not at all, and the segments before it are removed. Who
finds them still there begins to read at the last segment that has an entry of number 1.

Where segments lie is not known here: `records/journal.py` has them on a disk, the simulator in
memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from downpour.errors import FileCorrupt, SharedDirectoryError, StoreError
from downpour.scheduler import Checkpoint, Entry
from downpour.scheduler import events as on

Segment = tuple[int, int]
"""The term of the manager that wrote it, and its number among those of that manager, from 1."""

_HEAD = on.ExperimentSubmitted, on.Prepared


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """An entry with its number (from 1), its time, and the lines that the record had by then.

    `order` is its place among the entries of all experiments. The first line of a journal has the
    `cluster` whose manager writes it; one without any is of a version that did not say.
    """

    number: int
    order: int
    at_seconds: float
    record_lines: int
    entry: Entry
    cluster: str = ""


class SegmentStorage(Protocol):
    """Where the segments of one journal lie.

    Every method raises StoreError where a file cannot be used, SharedDirectoryError where it is
    the directory; what was asked for may have been done, or some of it.
    """

    place: str
    """Where that is, for people."""

    def segments(self) -> Sequence[Segment]:
        """Return the segments that are there, in the order in which they are read."""
        ...

    def append(self, segment: Segment, lines: Sequence[Line], *, durably: bool) -> None:
        """Append to a segment, which is made where it is not there.

        With `durably` all that was appended to it outlives the machine when this returns.
        """
        ...

    def publish(self, segment: Segment, lines: Sequence[Line]) -> None:
        """Make a segment that is there whole, or not at all; it is durable when this returns."""
        ...

    def remove(self, segments: Sequence[Segment]) -> None:
        """Remove segments; what stays all the same is not read."""
        ...


class JournalWriter:
    """Appends to one experiment's journal, under one manager's term; for one thread.

    Args:
        storage: where its segments lie.
        term: the manager's, so that no two managers write to one segment.
        lines: what the journal holds already.
        cluster: the manager's.
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
        """Take an entry in; it is not durable before the next `commit`."""
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
        """Take in a checkpoint, and forget what is in the journal before it."""
        self._next_line = 1
        self._unwritten, self._unconfirmed = [], []
        head, self._head = self._head, []
        for line in head[:2]:
            self.append(line.order, line.at_seconds, line.record_lines, line.entry)
        self.append(order, at_seconds, record_lines, entry)
        self._anew, self._unwritten = self._unwritten, []

    def commit(self, *, durably: bool = True) -> None:
        """Write what was appended; it outlives this process then, and with `durably` the machine.

        Raises:
            SharedDirectoryError: the directory refuses, or another manager has taken over; calling
                again writes all that is not yet known to be durable into a new segment.
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
            self._segment = None
            self._unwritten = self._unconfirmed + self._unwritten
            self._unconfirmed = []
            raise
        self._unconfirmed = [] if durably else self._unconfirmed + self._unwritten
        self._unwritten = []

    @property
    def under_way(self) -> tuple[Segment, Sequence[Line]]:
        """What the next commit appends, and where; some of it is there if it is cut short."""
        lines = [] if self._anew else self._unwritten
        return self._segment or (self._term, self._last_segment + 1), lines

    def _marked(self, line: Line) -> Line:
        return replace(line, cluster=self._cluster) if line.number == 1 else line

    def _publish_anew(self) -> None:
        self._segment = None
        former = self._storage.segments()
        if any(term > self._term for term, _ in former):
            raise SharedDirectoryError(self._storage.place, "another manager has taken over")
        self._storage.publish(self._next_segment(), self._anew)
        self._anew = []
        self._storage.remove(former)

    def _next_segment(self) -> Segment:
        self._last_segment += 1
        return self._term, self._last_segment


def in_order(parts: Iterable[tuple[int, Sequence[Line]]]) -> list[Line]:
    """Put the lines of a journal in order.

    A manager whose lock was lost may write beside the one that has followed it. Where the later one
    has begun to write, what the earlier one has written from there on belongs to no story.

    Args:
        parts: a segment's term and whole lines, in the order in which they are read.

    Raises:
        FileCorrupt: an entry is missing, and later ones are there.
    """
    found: dict[int, Line] = {}
    latest = 0
    for term, lines in parts:
        if lines and (term > latest or lines[0].number == 1):
            latest = term
            found = {number: line for number, line in found.items() if number < lines[0].number}
        found.update((line.number, line) for line in lines)
    for number in range(1, max(found, default=0) + 1):
        if number not in found:
            raise FileCorrupt("journal", f"entry {number} is missing or altered")
    return [found[number] for number in sorted(found)]
