"""Chooses the entries that a manager journals, their journal, and the time of writing.

`keep` gathers an event's consequences, and `commit` writes them. Only entries that change results
need a sync. Every fifty rounds, the manager adds a checkpoint, from which a later manager replays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import NamedTuple

from downpour.base.errors import SharedDirectoryError
from downpour.core.node.journal import JournalWriter
from downpour.core.scheduler import (
    Entry,
    Journaled,
    Observed,
    Scheduler,
    checkpoint,
    facts,
    must_last,
)
from downpour.core.scheduler import events as on

CHECKPOINT_ROUNDS = 50
"""Rounds between two checkpoints: few enough that a start replays a journal in moments."""

JournalOf = Callable[[str], JournalWriter | None]
"""Returns an experiment's journal, or None if it does not exist."""

Story = Iterable[on.Event | facts.Fact | Observed]
"""An event, its facts, and the manager's observations of it, in order."""


class Kept(NamedTuple):
    """An entry that replay needs, and its place among those of all experiments."""

    order: int
    entry: Entry


class Journaling:
    """Gathers entries and writes them to journals; not thread-safe.

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

    def keep(
        self,
        core: Scheduler,
        event: on.Event,
        happened: Sequence[facts.Fact],
        story: Story | None = None,
    ) -> list[Kept]:
        """Gather the entries of an event and its facts; return the ones for replay.

        The `story` has the event, its facts and the observations in between. Without a story, we
        have no observations.
        """
        kept: list[Kept] = []
        for entry in story if story is not None else (event, *happened):
            if isinstance(entry, facts.Dismissed):
                # All experiments had this worker.
                for experiment in core.state.experiments:
                    self._append(core, experiment, entry)
            elif isinstance(entry, Journaled):
                kept += self._append(core, entry.experiment, entry)
                if entry is event and kept:
                    kept += self._checkpoint(core, event, happened)
        return kept

    def _append(self, core: Scheduler, experiment: str, entry: Journaled) -> list[Kept]:
        journal = self._journal_of(experiment)
        # Late reports do not count, so nothing follows a conclusion in a journal.
        if journal is None or experiment in self._concluded:
            return []
        order = next(self._order)
        journal.append(order, core.state.now_seconds, entry)
        self._touch(experiment, must_last(core.state, entry))
        if isinstance(entry, facts.Concluded):
            self._concluded.add(experiment)
        return [Kept(order, entry)] if isinstance(entry, Entry) else []

    def _checkpoint(
        self, core: Scheduler, event: on.Event, happened: Sequence[facts.Fact]
    ) -> list[Kept]:
        """Add a checkpoint if one is due; the assignments of the new round follow it."""
        anew = checkpoint(core.state, event, happened)
        if anew is None or anew.rounds_done % self._checkpoint_rounds:
            return []
        journal = self._journal_of(anew.experiment)
        assert journal is not None  # noqa: S101 - the event was appended to it
        order = next(self._order)
        journal.begin_anew(order, core.state.now_seconds, anew)
        return [Kept(order, anew)]

    def _touch(self, experiment: str, must: bool) -> None:  # noqa: FBT001
        self._touched[experiment] = self._touched.get(experiment, False) or must

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

        Raises:
            SharedDirectoryError: an entry cannot be written now; you may repeat the call.
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
