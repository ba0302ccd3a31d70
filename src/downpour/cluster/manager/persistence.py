"""Persists events in each experiment's journal, for people and for the next manager.

`keep` writes nothing; it gathers the consequences of one event. `commit` writes them. The rules for
journaling and syncing are in `core/node/journaling.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

from downpour.cluster.manager import status
from downpour.cluster.manager.archive import Archive
from downpour.cluster.manager.observations import Observations
from downpour.cluster.manager.roster import Roster
from downpour.cluster.manager.workspace import Workspace
from downpour.core.node.journal import JournalWriter
from downpour.core.node.journaling import Journaling
from downpour.core.scheduler import Entry, Output, Scheduler, facts
from downpour.core.scheduler import events as on


class Persistence:
    """Writes into the given workspaces; for the driver's thread.

    Args:
        spaces: by experiment.
        roster: the workers that the journals name.
        archive: lists the experiments that have ended.
        first_order: the number of the next entry, counted over all experiments.
    """

    def __init__(
        self,
        spaces: Mapping[str, Workspace],
        roster: Roster,
        archive: Archive,
        first_order: int = 1,
    ) -> None:
        self.observations = Observations(spaces, roster)
        self._spaces = spaces
        self._archive = archive
        self._journaling = Journaling(self._journal_of, first_order)

    def keep(self, core: Scheduler, event: on.Event, output: Output) -> list[Entry]:
        """Gather the journal entries of an event and its output; returns the ones for replay."""
        story = self.observations.story(core, event, output)
        gathered = self._journaling.keep(core, event, output.facts, story)
        for order, entry in gathered:
            if isinstance(entry, on.ExperimentSubmitted):
                self._archive.places[entry.experiment] = order
            if isinstance(entry, facts.Concluded):
                # Set this now, not when the command runs. The command waits behind other work, and
                # a preparation that ends in the meantime must find the experiment concluded.
                self._spaces[entry.experiment].concluded = True
                self._archive.conclude(status.summary(core.state.experiments[entry.experiment]))
        return [entry for _, entry in gathered]

    def commit(self) -> None:
        """Write all gathered entries; returns when the ones that change results are durable.

        If only one experiment's folder is gone, it holds up no others: its entries wait in memory
        until the folder is back or the experiment has failed.

        Raises:
            SharedDirectoryError: the directory refuses; `commit` may be repeated.
        """
        self._journaling.commit(is_gone=self._is_gone)

    def _is_gone(self, experiment: str) -> bool:
        space = self._spaces[experiment]
        space.look()
        return space.is_gone

    def _journal_of(self, experiment: str) -> JournalWriter | None:
        space = self._spaces.get(experiment)
        return space.journal if space is not None else None
