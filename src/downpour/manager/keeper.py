"""Keeps what happened: the record, for people, and the journal, for whoever manages after us.

`keep` writes nothing: it gathers what one event has led to. `commit` brings it to the disk, the
record first, so that the journal can say how long the record was; what a crash has left in the
record beyond that belongs to nothing that counts. Only what changes results is waited for.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

from downpour.manager import status
from downpour.manager.archive import Archive
from downpour.manager.recorder import Recorder
from downpour.manager.roster import Roster
from downpour.manager.workspace import Workspace
from downpour.scheduler import Scheduler, checkpoint, entries, experiment_of, must_last
from downpour.scheduler import commands as do
from downpour.scheduler import events as on

_ROUNDS = 50
"""Between two checkpoints: reading a journal takes moments, and it stays small."""


class Keeper:
    """Writes into the given workspaces; for the driver's thread.

    Args:
        spaces: by experiment.
        roster: knows the workers that records introduce.
        archive: notes what has ended.
        first_order: the place of the next entry among those of all experiments.
    """

    def __init__(
        self,
        spaces: Mapping[str, Workspace],
        roster: Roster,
        archive: Archive,
        first_order: int = 1,
    ) -> None:
        self.recorder = Recorder(spaces, roster)
        self._spaces = spaces
        self._archive = archive
        self._order = count(first_order)
        self._touched: dict[str, bool] = {}

    def keep(self, core: Scheduler, event: on.Event, commands: list[do.Command]) -> None:
        """Gather what must be kept of an event and of what the core made of it."""
        for experiment in self.recorder.note(event, commands):
            self._touched.setdefault(experiment, False)
        anew = checkpoint(core, event, commands)
        for entry in entries(event, commands):
            experiment = experiment_of(entry)
            space = self._spaces.get(experiment)
            if space is None or space.journal is None or space.concluded:
                continue
            place = next(self._order), core.now_seconds, len(space.record)
            if entry is event and anew is not None and anew.rounds_done % _ROUNDS == 0:
                space.journal.begin_anew(*place, anew)
            else:
                space.journal.append(*place, entry)
            self._touched[experiment] = self._touched.get(experiment, False) or must_last(entry)
            if isinstance(entry, on.ExperimentSubmitted):
                self._archive.places[experiment] = place[0]
            if isinstance(entry, do.Conclude):
                space.concluded = True
                self._archive.conclude(status.summary(core.experiments[experiment]))

    def commit(self) -> None:
        """Write it all; returns when what changes results is durable.

        Raises:
            SharedDirectoryError: it cannot be; may be called again.
        """
        for experiment, must in self._touched.items():
            space = self._spaces[experiment]
            space.record.flush()
            if space.journal is not None:
                space.journal.commit(durably=must)
        self._touched.clear()
