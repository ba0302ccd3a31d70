"""A manager's journals: what was kept, what is being written, and what a death leaves of that."""

from __future__ import annotations

from itertools import count

from downpour.errors import SharedDirectoryError
from downpour.runtime.journal import Line
from downpour.scheduler import Entry, entries, must_last
from downpour.scheduler import commands as do
from downpour.scheduler import events as on
from downpour.simulator.clock import Process
from downpour.simulator.disk import Disk


class _Journal:
    """Appends to one experiment's journal as `runtime.journal` does, to lines in memory."""

    def __init__(self, disk: Disk, writer: Process, experiment: str, term: int) -> None:
        self.next_number = 1
        self.closed = False
        self._disk = disk
        self._writer = writer
        self._experiment = experiment
        self._segment = (term, 1)
        self._unwritten: list[Line] = []
        self._unconfirmed: list[Line] = []

    def append(self, order: int, at_seconds: float, entry: Entry) -> None:
        line = Line(
            number=self.next_number,
            order=order,
            at_seconds=at_seconds,
            record_lines=0,
            entry=entry,
        )
        self._unwritten.append(line)
        self.next_number += 1

    def commit(self, *, durably: bool) -> None:
        try:
            self._write(self._unwritten, durably=durably)
        except SharedDirectoryError:
            self._unwritten = self._unconfirmed + self._unwritten
            self._unconfirmed = []
            self._segment = (self._segment[0], self._segment[1] + 1)
            raise
        self._unconfirmed = [] if durably else self._unconfirmed + self._unwritten
        self._unwritten = []

    def tear(self, lines: int) -> None:
        """Write only so many lines; nobody will ever write the others."""
        self._write(self._unwritten[:lines], durably=False)

    @property
    def waiting(self) -> int:
        return len(self._unwritten)

    def _write(self, lines: list[Line], *, durably: bool) -> None:
        self._disk.write_lines(
            self._writer, self._experiment, self._segment, list(lines), sync=durably
        )


class Keeper:
    """Gathers what events have led to, and brings it to the disk."""

    def __init__(self, disk: Disk, writer: Process, term: int, first_order: int) -> None:
        self._disk = disk
        self._writer = writer
        self._term = term
        self._order = count(first_order)
        self._journals: dict[str, _Journal] = {}
        self._touched: dict[str, bool] = {}

    def take_up(self, experiment: str, story: list[Line], *, ended: bool) -> None:
        """Go on with a journal; one whose experiment has ended takes nothing more."""
        journal = self._journal(experiment)
        journal.next_number = story[-1].number + 1
        journal.closed = ended

    def keep(self, at_seconds: float, event: on.Event, commands: list[do.Command]) -> list[Entry]:
        """Gather what must be kept; returns it."""
        kept = []
        for entry in entries(event, commands):
            experiment = _experiment(entry)
            journal = self._journal(experiment)
            if not journal.closed:
                kept.append(entry)
                journal.append(next(self._order), at_seconds, entry)
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
            self._journals[experiment].commit(durably=must)
        self._touched.clear()

    def tear(self) -> None:
        """Leave what a death in the middle of a commit leaves: some of it."""
        for experiment in self._touched:
            journal = self._journals[experiment]
            if not self._disk.weather.away:
                journal.tear(self._disk.chance(journal.waiting))

    def _journal(self, experiment: str) -> _Journal:
        if experiment not in self._journals:
            self._journals[experiment] = _Journal(self._disk, self._writer, experiment, self._term)
        return self._journals[experiment]


def _experiment(entry: Entry) -> str:
    if isinstance(entry, do.Assign | do.Accept | do.GiveUp):
        return entry.attempt.experiment
    return entry.experiment
