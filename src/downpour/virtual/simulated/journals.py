"""A manager's journals in the simulated directory, and the part that survives its death."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from downpour.base.errors import SharedDirectoryError
from downpour.core.node.journal import JournalWriter, Line, Segment
from downpour.core.node.journaling import Journaling
from downpour.core.scheduler import Entry, Output, Scheduler
from downpour.core.scheduler import commands as do
from downpour.core.scheduler import events as on
from downpour.files.records.view import aggregating
from downpour.virtual.simulated.clock import Process
from downpour.virtual.simulated.disk import Disk


class MemorySegments:
    """The segments of one experiment's journal in the simulated directory, for one manager."""

    def __init__(self, disk: Disk, writer: Process, experiment: str) -> None:
        self._disk = disk
        self._writer = writer
        self._experiment = experiment

    def append(self, segment: Segment, lines: Sequence[Line], *, durably: bool) -> None:
        """Append to a segment; if the directory fails, some of the lines may be written."""
        self._disk.write_lines(self._writer, self._experiment, segment, list(lines), sync=durably)


class SimulatedPersistence:
    """A manager's journals, as in `cluster/manager/persistence.py`, with few observations.

    Args:
        disk: the simulated directory.
        writer: the manager.
        term: the manager's term.
        first_order: the place of the next entry among those of all experiments.
        rounds: the number of rounds between two checkpoints.
        journal_class: the class of writers; tests plant defects in it.
    """

    def __init__(
        self,
        disk: Disk,
        writer: Process,
        term: int,
        first_order: int,
        rounds: int,
        journal_class: type[JournalWriter] = JournalWriter,
    ) -> None:
        self.journaling = Journaling(self._journal_of, first_order, rounds)
        self._disk = disk
        self._writer = writer
        self._term = term
        self._journal_class = journal_class
        self._journals: dict[str, JournalWriter | None] = {}

    def take_up(self, experiment: str, story: list[Line], *, ended: bool) -> None:
        """Continue a journal; the next commit ends what counts of an earlier manager's lines.

        The journal of an ended experiment takes no more lines.
        """
        self._journals[experiment] = None if ended else self._writer_of(experiment, story)

    def begin(self) -> None:
        """Write to the journals that this manager continues.

        Raises:
            SharedDirectoryError: the directory fails, or another manager has taken over.
        """
        for journal in filter(None, self._journals.values()):
            journal.commit()

    def keep(self, core: Scheduler, event: on.Event, output: Output) -> list[Entry]:
        """Gather what must be journaled; return the part of it that replay needs."""
        begun = [each for each in output.commands if isinstance(each, do.Aggregate)]
        story = event, *output.facts, *map(aggregating, begun)
        return [kept.entry for kept in self.journaling.keep(core, event, output.facts, story)]

    def commit(self) -> None:
        """Write all gathered entries; after a SharedDirectoryError, callers may repeat the call."""
        self.journaling.commit()

    def tear(self) -> None:
        """Write some of the lines, as a crash in the middle of a commit leaves them."""
        for experiment in self.journaling.touched:
            journal = self._journal_of(experiment)
            segment, lines = journal.under_way if journal is not None else ((0, 0), ())
            some = lines[: self._disk.chance(len(lines))]
            with suppress(SharedDirectoryError):
                MemorySegments(self._disk, self._writer, experiment).append(
                    segment, some, durably=False
                )

    def _journal_of(self, experiment: str) -> JournalWriter | None:
        if experiment not in self._journals:
            self._journals[experiment] = self._writer_of(experiment, [])
        return self._journals[experiment]

    def _writer_of(self, experiment: str, story: list[Line]) -> JournalWriter:
        return self._journal_class(
            MemorySegments(self._disk, self._writer, experiment), self._term, story
        )
