"""A manager's journals: what was kept, what is being written, and what a death leaves of that."""

from __future__ import annotations

from contextlib import suppress
from itertools import count

from downpour.errors import SharedDirectoryError
from downpour.runtime.journal import Line
from downpour.scheduler import (
    Checkpoint,
    Entry,
    Scheduler,
    checkpoint,
    entries,
    experiment_of,
    must_last,
)
from downpour.scheduler import commands as do
from downpour.scheduler import events as on
from downpour.simulator.clock import Process
from downpour.simulator.disk import Disk

_HEAD = on.ExperimentSubmitted, on.Prepared


class _Journal:
    """Appends to one experiment's journal as `runtime.journal` does, to lines in memory."""

    def __init__(self, disk: Disk, writer: Process, experiment: str, term: int) -> None:
        self.next_number = 1
        self.closed = False
        self._disk = disk
        self._writer = writer
        self._experiment = experiment
        self._segment = (term, 1)
        self._head: list[Line] = []
        self._anew: list[Line] = []
        self._unwritten: list[Line] = []
        self._unconfirmed: list[Line] = []

    def take_up(self, story: list[Line], *, ended: bool) -> None:
        self._head = [line for line in story if isinstance(line.entry, _HEAD)]
        self._anew = list(story)
        self.next_number = len(story) + 1
        self.closed = ended

    def begin_anew(self, order: int, at_seconds: float, entry: Checkpoint) -> None:
        self.next_number = 1
        self._unwritten, self._unconfirmed = [], []
        head, self._head = self._head, []
        for line in head[:2]:
            self.append(line.order, line.at_seconds, line.entry)
        self.append(order, at_seconds, entry)
        self._anew, self._unwritten = self._unwritten, []

    def append(self, order: int, at_seconds: float, entry: Entry) -> None:
        line = Line(
            number=self.next_number,
            order=order,
            at_seconds=at_seconds,
            record_lines=0,
            entry=entry,
        )
        if isinstance(entry, _HEAD):
            self._head.append(line)
        self._unwritten.append(line)
        self.next_number += 1

    def commit(self, *, durably: bool) -> None:
        self.publish_anew()
        try:
            self._write(self._unwritten, durably=durably)
        except SharedDirectoryError:
            self._unwritten = self._unconfirmed + self._unwritten
            self._unconfirmed = []
            self._next_segment()
            raise
        self._unconfirmed = [] if durably else self._unconfirmed + self._unwritten
        self._unwritten = []

    def publish_anew(self) -> None:
        if self._anew:
            self._next_segment()
            self._disk.begin_anew(self._writer, self._experiment, self._segment, self._anew)
            self._anew = []

    def tear(self, lines: int) -> None:
        if not self._anew:  # which is published as a whole, and then not yet
            self._write(self._unwritten[:lines], durably=False)

    @property
    def waiting(self) -> int:
        return len(self._unwritten)

    def _next_segment(self) -> None:
        self._segment = (self._segment[0], self._segment[1] + 1)

    def _write(self, lines: list[Line], *, durably: bool) -> None:
        self._disk.write_lines(
            self._writer, self._experiment, self._segment, list(lines), sync=durably
        )


class Keeper:
    """Gathers what events have led to, and brings it to the disk; `rounds` between checkpoints."""

    def __init__(
        self, disk: Disk, writer: Process, term: int, first_order: int, rounds: int
    ) -> None:
        self._rounds = rounds
        self._disk = disk
        self._writer = writer
        self._term = term
        self._order = count(first_order)
        self._journals: dict[str, _Journal] = {}
        self._touched: dict[str, bool] = {}

    def take_up(self, experiment: str, story: list[Line], *, ended: bool) -> None:
        """Go on with a journal; one whose experiment has ended takes nothing more."""
        self._journal(experiment).take_up(story, ended=ended)

    def begin(self) -> None:
        """Write what was read, so that nothing an earlier manager still writes counts.

        Raises:
            SharedDirectoryError: that cannot be done now, or another manager has taken over.
        """
        for journal in self._journals.values():
            if not journal.closed:
                journal.publish_anew()

    def keep(self, core: Scheduler, event: on.Event, commands: list[do.Command]) -> list[Entry]:
        """Gather what must be kept; returns it."""
        kept: list[Entry] = []
        anew = checkpoint(core, event, commands)
        for entry in entries(event, commands):
            experiment = experiment_of(entry)
            journal = self._journal(experiment)
            if journal.closed:
                continue
            place = next(self._order), core.now_seconds
            if entry is event and anew is not None and anew.rounds_done % self._rounds == 0:
                kept.append(anew)
                journal.begin_anew(*place, anew)
            else:
                kept.append(entry)
                journal.append(*place, entry)
            journal.closed = isinstance(entry, do.Conclude)
            self._touched[experiment] = self._touched.get(experiment, False) or must_last(entry)
        return kept

    @property
    def must_sync(self) -> bool:
        """Whether something is waiting that must not be lost."""
        return any(self._touched.values())

    def commit(self) -> None:
        """Write it all; raises SharedDirectoryError where that cannot be done now."""
        for experiment, must in self._touched.items():
            self._disk.ask(self._writer.host, "record")
            self._journals[experiment].commit(durably=must)
        self._touched.clear()

    def tear(self) -> None:
        """Leave what a death in the middle of a commit leaves: some of it."""
        for experiment in self._touched:
            journal = self._journals[experiment]
            with suppress(SharedDirectoryError):
                journal.tear(self._disk.chance(journal.waiting))

    def _journal(self, experiment: str) -> _Journal:
        if experiment not in self._journals:
            self._journals[experiment] = _Journal(self._disk, self._writer, experiment, self._term)
        return self._journals[experiment]
