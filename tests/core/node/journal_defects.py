"""Writers of journals with one defect each, to be found on a disk and in simulated directories."""

from typing import Any

from downpour.base.errors import StoreError
from downpour.core.node.journal import JournalWriter
from downpour.core.scheduler import Checkpoint


class WritesOnAfterAFailure(JournalWriter):
    """Appends to the segment in which a write has failed, and may have torn a line."""

    def commit(self, *, durably: bool = True) -> None:
        segment = self._segment
        try:
            super().commit(durably=durably)
        except StoreError:
            self._segment = segment
            raise


class ForgetsWhatWasNotSynced(JournalWriter):
    """Takes lines for durable that were written before a sync that failed."""

    def commit(self, *, durably: bool = True) -> None:
        unwritten = list(self._unwritten)
        try:
            super().commit(durably=durably)
        except StoreError:
            self._unwritten = unwritten
            raise


class ForgetsAtACheckpoint(JournalWriter):
    """Goes on in a new segment, and does not repeat there what was not synced."""

    def _turn_over(self) -> None:
        self._unconfirmed = []
        super()._turn_over()


class CountsCheckpoints(JournalWriter):
    """Gives a checkpoint a number of its own, so that a damaged one is missing."""

    def begin_anew(self, order: int, at_seconds: float, entry: Checkpoint) -> None:
        self._next_line += 1
        super().begin_anew(order, at_seconds, entry)


class SaysNothingAtFirst(JournalWriter):
    """Takes a journal up and writes no line, so an earlier manager may write on."""

    def __init__(self, *words: Any, **named: Any) -> None:
        super().__init__(*words, **named)
        self._next_line -= len(self._unwritten)
        self._unwritten = []


DEFECTS: tuple[type[JournalWriter], ...] = (
    WritesOnAfterAFailure,
    ForgetsWhatWasNotSynced,
    ForgetsAtACheckpoint,
    CountsCheckpoints,
    SaysNothingAtFirst,
)
