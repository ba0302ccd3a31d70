"""Removes old logs: processes that come and go for years must not fill the shared directory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread

from downpour.base.errors import StoreError
from downpour.files.logs.log_places import LogPlace, logs_of
from downpour.files.store import SharedDirectory

KEPT_SECONDS = 14 * 24 * 3600.0
KEPT_BYTES = 256 * 1024**2
"""The limit for all processes together: the full logs of some hundred workers."""
_LOOK_SECONDS = 3600.0


def remove_old_logs(place: LogPlace, now_seconds: float) -> None:
    """Remove pieces that have not changed for two weeks, and the oldest beyond `KEPT_BYTES`.

    Raises:
        SharedDirectoryError: the place cannot be used.
    """
    left_bytes = KEPT_BYTES
    for piece in sorted(place.pieces(), key=lambda piece: piece.changed_seconds, reverse=True):
        left_bytes -= piece.size_bytes
        if left_bytes < 0 or piece.changed_seconds < now_seconds - KEPT_SECONDS:
            place.remove(piece.name)


@contextmanager
def old_logs_removed(
    shared: SharedDirectory, clock: Callable[[], float] = time.time
) -> Iterator[None]:
    """Remove old logs now and every hour inside the block, in a thread that nothing waits for."""
    ending = Event()

    def look() -> None:
        place = logs_of(shared)
        while not ending.is_set():
            with suppress(StoreError):
                remove_old_logs(place, clock())
            ending.wait(_LOOK_SECONDS)

    Thread(target=look, name="old-logs", daemon=True).start()
    try:
        yield
    finally:
        ending.set()
