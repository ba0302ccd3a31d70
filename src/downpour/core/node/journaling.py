"""What a manager keeps of what happens: which entries, in which journal, and when.

`keep` gathers what an event has led to; `commit` has it written. Every fifty rounds a checkpoint
takes the place of what a journal held before. Only what changes results must be synced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import NamedTuple

from downpour.base.errors import SharedDirectoryError
from downpour.core.node.journal import JournalWriter
from downpour.core.scheduler import (
    Entry,
    Scheduler,
    checkpoint,
    entries,
    facts,
    must_last,
)
from downpour.core.scheduler import events as on

CHECKPOINT_ROUNDS = 50
"""Rounds between two checkpoints: few enough that a journal stays short and is read in moments."""

JournalOf = Callable[[str], JournalWriter | None]
"""Returns an experiment's journal, or None where it keeps none or is not there."""


class Kept(NamedTuple):
    """An entry, and its place among those of all experiments."""

    order: int
    entry: Entry


class Journaling:
    """Gathers the entries that must be journaled, and writes them; not thread-safe.

    Args:
        journal_of: the journals.
        first_order: the place of the next entry among those of all experiments.
        checkpoint_rounds: how many rounds lie between two checkpoints.
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
        record_lines: Callable[[str], int] = lambda _: 0,
    ) -> list[Kept]:
        """Gather and return what must be journaled of an event and of the facts it led to.

        `record_lines` returns how many lines an experiment's record has by now: a manager that
        takes it up cuts off the lines that came after the last journaled entry.
        """
        kept: list[Kept] = []
        anew = checkpoint(core.state, event, happened)
        for entry in entries(event, happened):
            experiment = entry.experiment
            journal = self._journal_of(experiment)
            # Reports that come late do not count, so nothing follows a conclusion in a journal.
            if journal is None or experiment in self._concluded:
                continue
            place = next(self._order), core.state.now_seconds, record_lines(experiment)
            # In place of the event that ended the round before; assignments of the new one follow.
            if entry is event and anew is not None and self._is_due(anew.rounds_done):
                journal.begin_anew(*place, anew)
                kept.append(Kept(place[0], anew))
            else:
                journal.append(*place, entry)
                kept.append(Kept(place[0], entry))
            self._touched[experiment] = self._touched.get(experiment, False) or must_last(
                core.state, entry
            )
            if isinstance(entry, facts.Concluded):
                self._concluded.add(experiment)
        return kept

    @property
    def touched(self) -> Sequence[str]:
        """The experiments that have entries to write."""
        return tuple(self._touched)

    @property
    def must_sync(self) -> bool:
        """Whether an entry is waiting that must be durable before anything follows from it."""
        return any(self._touched.values())

    def commit(
        self,
        before_each: Callable[[str], None] = lambda _: None,
        is_gone: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Write all gathered entries; those that change results are durable when this returns.

        Args:
            before_each: Called with an experiment before its journal is written.
            is_gone: Asked about an experiment whose journal was refused. If its place alone is
                gone, the others go on, and its entries wait for the next call.

        Raises:
            SharedDirectoryError: an entry cannot be written now; the call may be repeated.
        """
        held: dict[str, bool] = {}
        for experiment, durably in self._touched.items():
            try:
                before_each(experiment)  # the journal says how many lines the record has
                journal = self._journal_of(experiment)
                if journal is not None:
                    journal.commit(durably=durably)
            except SharedDirectoryError:
                if not is_gone(experiment):
                    raise
                held[experiment] = durably
        # Only now: after an error the call is repeated, for journals that were written as well, and
        # those have nothing more to write.
        self._touched = {name: must for name, must in held.items() if name not in self._concluded}

    def _is_due(self, rounds_done: int) -> bool:
        return rounds_done % self._checkpoint_rounds == 0
