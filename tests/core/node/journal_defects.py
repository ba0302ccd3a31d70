"""Writers of journals with one defect each, to be found on a disk and in simulated directories."""

from __future__ import annotations

from downpour.base.errors import StoreError
from downpour.core.node.journal import JournalWriter


class WritesOnAfterAFailure(JournalWriter):
    """Appends to the segment in which a write has failed, and may have torn a line."""

    def commit(self, *, durably: bool = True) -> None:
        """Stay in the segment."""
        segment = self._segment
        try:
            super().commit(durably=durably)
        except StoreError:
            self._segment = segment
            raise


class ForgetsWhatWasNotSynced(JournalWriter):
    """Takes lines for durable that were written before a sync that failed."""

    def commit(self, *, durably: bool = True) -> None:
        """Write only the lines again that were to be written now."""
        unwritten = list(self._unwritten)
        try:
            super().commit(durably=durably)
        except StoreError:
            self._unwritten = unwritten
            raise


class RemovesBeforeItPublishes(JournalWriter):
    """Removes the old segments before the new one is published."""

    def _publish_anew(self) -> None:
        self._storage.remove(self._storage.segments())
        super()._publish_anew()


class PublishesBesideALaterManager(JournalWriter):
    """Begins a journal anew although another manager has taken over, and removes its segments."""

    def _publish_anew(self) -> None:
        former = self._storage.segments()
        self._storage.publish(self._next_segment(), self._anew)
        self._segment, self._anew = None, []
        self._storage.remove(former)


DEFECTS: tuple[type[JournalWriter], ...] = (
    WritesOnAfterAFailure,
    ForgetsWhatWasNotSynced,
    RemovesBeforeItPublishes,
    PublishesBesideALaterManager,
)
