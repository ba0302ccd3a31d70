"""The entries of a journal, and what must be durable before anything follows from it.

An experiment's journal holds everything that happened in it: numbered lines in *segments*. Managers
only append lines and never remove a segment. `commit` returns when the lines that must last are
durable. Each manager begins its own segment, and another one after a failed write. It then rewrites
all lines that may not be durable, under the same numbers. So if a line in the middle is torn, the
next segment repeats it. Readers take segments in the order of their terms and numbers. Of two lines
with the same number, the later one counts. A later term's first line ends the lines of earlier
terms. So a manager that takes up a journal writes a line at once (`TakenUp`). An earlier manager
may not know of its successor and still append lines, but these do not count.

A checkpoint begins a segment, too, and its line carries the submission and the preparation. Replay
begins there, so a manager that starts reads only the last segments (`since_checkpoint`). Its line
has the number of the line before it (docs/internals/decisions.md, "A checkpoint holds the open
tasks"). All other lines together yield the record that people read (`in_order`, `record/view.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import NamedTuple, Protocol

from downpour.base.errors import FileCorrupt, SharedDirectoryError, StoreError
from downpour.core.scheduler import (
    Checkpoint,
    Entry,
    Journaled,
    Observed,
    Scheduler,
    TakenUp,
    checkpoint,
    must_last,
)
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.core.scheduler.experiment import Experiment

Segment = tuple[int, int]
"""The term of the manager that wrote the segment, and the segment's number in that term, from 1."""

Part = tuple[int, Sequence["Line"]]
"""A segment's term and whole lines."""

# Entries that a checkpoint does not replace: the spec, and the name and sizes of the prepared data.
_HEAD = on.ExperimentSubmitted, on.Prepared


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """An entry with its number (from 1) and its time.

    `order` is its place among the entries of all experiments. The first line of a journal has the
    `cluster` whose manager writes it. The line of a checkpoint has the submission and the
    preparation as its `head`.
    """

    number: int
    order: int
    at_seconds: float
    entry: Journaled
    cluster: str = ""
    head: tuple[Line, ...] = ()


class SegmentStorage(Protocol):
    """The storage of one journal's segments."""

    def append(self, segment: Segment, lines: Sequence[Line], *, durably: bool) -> None:
        """Append to a segment, and create it if it does not exist.

        With `durably`, all of the segment's lines survive a crash of the machine after the return.

        Raises:
            SharedDirectoryError: the directory fails; the file may still have part of the lines.
            StoreError: such a file cannot be used.
        """


class JournalWriter:
    """Appends to one experiment's journal, under one manager's term; not thread-safe.

    `replayed` counts the lines that a later manager would replay.

    Args:
        storage: the storage of its segments.
        term: the manager's term, so that no two managers write to one segment.
        lines: if the manager takes up a journal, the lines for replay (`since_checkpoint`).
        cluster: the name of the manager's cluster.
    """

    def __init__(
        self, storage: SegmentStorage, term: int, lines: Sequence[Line] = (), *, cluster: str = ""
    ) -> None:
        self._storage = storage
        self._term = term
        self._cluster = cluster
        self._head = [self._marked(line) for line in lines if isinstance(line.entry, _HEAD)]
        self._next_line = lines[-1].number + 1 if lines else 1
        self.replayed = len(lines)
        self._last_segment = 0
        self._segment: Segment | None = None
        self._unwritten: list[Line] = []
        self._unconfirmed: list[Line] = []
        if lines:
            self.append(lines[-1].order, lines[-1].at_seconds, TakenUp())

    def append(self, order: int, at_seconds: float, entry: Journaled) -> None:
        """Add an entry, which the next `commit` makes durable."""
        line = self._add(order, at_seconds, entry)
        self.replayed += 1
        if isinstance(entry, _HEAD):
            self._head.append(line)

    def begin_anew(self, order: int, at_seconds: float, entry: Checkpoint) -> None:
        """Begin a segment with a checkpoint; from now on, replay begins there."""
        self._turn_over()
        self._next_line -= 1
        self.replayed = 0
        # Each manager that takes up the experiment adds a `Prepared`, which repeats the first one.
        self._add(order, at_seconds, entry, tuple(self._head[:2]))

    def commit(self, *, durably: bool = True) -> None:
        """Write the appended lines; they survive this process, and with `durably` the machine."""
        if not self._unwritten and not (durably and self._unconfirmed):
            return
        if self._segment is None:
            self._last_segment += 1
            self._segment = self._term, self._last_segment
        try:
            self._storage.append(self._segment, self._unwritten, durably=durably)
        except StoreError:
            # This segment may end in half a line. If we appended another line to it, both would be
            # lost.
            self._turn_over()
            raise
        self._unconfirmed = [] if durably else self._unconfirmed + self._unwritten
        self._unwritten = []

    @property
    def under_way(self) -> tuple[Segment, Sequence[Line]]:
        """The next commit's segment and lines; a crash may leave only part of them."""
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
        """Continue in a new segment, which repeats the lines that may not be durable."""
        self._segment = None
        self._unwritten = self._unconfirmed + self._unwritten
        self._unconfirmed = []


def in_order(parts: Iterable[Part]) -> list[Line]:
    """Put the lines of a whole journal in order; its `parts` are in reading order.

    A manager that has lost its lock may still write while its successor writes, too. From the
    successor's first line on, the earlier manager's lines do not count.
    """
    return _unbroken(_counting(parts)[0], 1)


def since_checkpoint(parts: Iterable[Part]) -> list[Line]:
    """Put the lines for replay in order: the last checkpoint's head, then all lines from it on.

    Args:
        parts: the last segments, in reading order; all segments if no checkpoint among them counts
            (`has_checkpoint`).
    """
    by_number, checkpoints = _counting(parts)
    last = max(checkpoints, default=0)
    lines = _unbroken(by_number, last + 1)
    return [*checkpoints[last].head, checkpoints[last], *lines] if last else lines


def has_checkpoint(parts: Iterable[Part]) -> bool:
    """Whether replay needs no segment before these."""
    return bool(_counting(parts)[1])


def _counting(parts: Iterable[Part]) -> tuple[dict[int, Line], dict[int, Line]]:
    """Return the lines that count, and the checkpoints among them apart, by number."""
    by_number: dict[int, Line] = {}
    checkpoints: dict[int, Line] = {}
    latest = 0
    for term, lines in parts:
        # A later term voids all entries from its first number on.
        if lines and term > latest:
            latest = term
            first = lines[0].number
            by_number = {number: line for number, line in by_number.items() if number < first}
            checkpoints = {number: line for number, line in checkpoints.items() if number < first}
        for line in lines:
            (checkpoints if line.head else by_number)[line.number] = line
    return by_number, checkpoints


def _unbroken(by_number: dict[int, Line], first: int) -> list[Line]:
    # We can't notice missing lines at the end: perhaps a manager never wrote them.
    last = max(by_number, default=0)
    for number in range(first, last + 1):
        if number not in by_number:
            raise FileCorrupt("journal", f"entry {number} is missing or altered")
    return [by_number[number] for number in range(first, last + 1)]


CHECKPOINT_ROUNDS = 50
"""Rounds between two checkpoints: few enough that a start replays a journal in moments."""

JournalOf = Callable[[str], JournalWriter | None]
"""Returns an experiment's journal, or None if it does not exist."""

Story = Iterable[on.Event | out.Fact | Observed]
"""An event, its facts, and the manager's observations of it, in order."""


class Kept(NamedTuple):
    """An entry that replay needs, and its place among those of all experiments."""

    order: int
    entry: Entry


class Journaling:
    """Gathers entries and writes them to journals; not thread-safe.

    `keep` gathers an event's consequences, and `commit` writes them. Only entries that change
    results need a sync. Every fifty rounds, the manager adds a checkpoint, from which a later
    manager replays.

    Args:
        journal_of: finds a journal.
        first_order: the place of the next entry among those of all experiments.
        checkpoint_rounds: the number of rounds between two checkpoints.
    """

    def __init__(
        self,
        journal_of: JournalOf,
        first_order: int = 1,
        checkpoint_rounds: int = CHECKPOINT_ROUNDS,
    ) -> None:
        self._journal_of = journal_of
        self._order = count(first_order)
        self._checkpoint_rounds = checkpoint_rounds
        self._touched: dict[str, bool] = {}
        self._concluded: set[str] = set()

    def keep(self, core: Scheduler, event: on.Event, story: Story) -> list[Kept]:
        """Gather the entries of an event's story; return the ones for replay."""
        kept: list[Kept] = []
        for entry in story:
            if isinstance(entry, out.Dismissed):
                # All experiments had this worker.
                for experiment in core.state.experiments:
                    self._append(core, experiment, entry)
            elif isinstance(entry, Journaled):
                kept += self._append(core, entry.experiment, entry)
        if isinstance(event, on.Aggregated):
            kept += self._checkpoint(core, event.experiment)
        return kept

    def _append(self, core: Scheduler, experiment: str, entry: Journaled) -> list[Kept]:
        journal = self._journal_of(experiment)
        # Late reports do not count, so nothing follows a conclusion in a journal.
        if journal is None or experiment in self._concluded:
            return []
        order = next(self._order)
        journal.append(order, core.state.now_seconds, entry)
        must = self._touched.get(experiment, False) or must_last(core.state, entry)
        self._touched[experiment] = must
        if isinstance(entry, out.Concluded):
            self._concluded.add(experiment)
        return [Kept(order, entry)] if isinstance(entry, Entry) else []

    def _checkpoint(self, core: Scheduler, name: str) -> list[Kept]:
        experiment, journal = core.state.open_as(name), self._journal_of(name)
        if experiment is None or experiment.round is None or journal is None:
            return []
        if not self._is_due(experiment, journal.replayed):
            return []
        order, anew = next(self._order), checkpoint(experiment)
        journal.begin_anew(order, core.state.now_seconds, anew)
        return [Kept(order, anew)]

    def _is_due(self, experiment: Experiment, lines: int) -> bool:
        if experiment.spec.in_step:
            return experiment.rounds_done % self._checkpoint_rounds == 0
        # A checkpoint holds all open tasks, and more of them the further the shards are apart. So a
        # longer one waits for more lines; else the journal would be made of checkpoints.
        shards = experiment.spec.shards
        tasks = shards * len(experiment.rounds)
        return lines >= self._checkpoint_rounds * (2 * shards + tasks / 12)

    @property
    def touched(self) -> Sequence[str]:
        """The experiments that have entries to write."""
        return tuple(self._touched)

    @property
    def must_sync(self) -> bool:
        """Whether a waiting entry must be durable before anything follows from it."""
        return any(self._touched.values())

    def commit(self, is_gone: Callable[[str], bool] = lambda _: False) -> None:
        """Write all gathered entries; on return, entries that change results are durable.

        Args:
            is_gone: says whether only this experiment's storage is gone, if its journal refused a
                write. If so, the others continue, and its entries wait for the next call.
        """
        held: dict[str, bool] = {}
        for experiment, durably in self._touched.items():
            try:
                journal = self._journal_of(experiment)
                if journal is not None:
                    journal.commit(durably=durably)
            except SharedDirectoryError:
                if not is_gone(experiment):
                    raise
                held[experiment] = durably
        # We forget entries only now. After an error, the driver repeats the call for all journals.
        # If a journal was written before the error, it has nothing more to write.
        self._touched = {name: must for name, must in held.items() if name not in self._concluded}
