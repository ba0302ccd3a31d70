"""The pulse of a bucket's manager, which shows managers on other machines that it is alive.

A lock ends with its holder, but an object store has no locks. So the leader replaces an object
every two seconds. A successor takes the leader for dead once the object has not changed for ten
seconds, by the successor's own clock: machines need not agree on the time. A leader that only stood
still finds the later term when it looks.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from threading import Event, Thread

from downpour.base.errors import FileMissing, StoreError
from downpour.files.store.bucket import Bucket

log = logging.getLogger(__name__)

FOLDER = "pulses"
BEAT_SECONDS = 2.0
DEAD_SECONDS = 10.0
"""Four beats may get lost, for instance in a slow store, before a successor takes over."""
_LAST = b"ended"


class Pulse:
    """Beats from `start` to `stop`, in a separate thread.

    Args:
        bucket: where to beat.
        term: the leader's term.
        leads: says whether no later term has begun; raises StoreError if it cannot find out.
    """

    def __init__(self, bucket: Bucket, term: int, leads: Callable[[], bool]) -> None:
        self._bucket = bucket
        self._key = f"{FOLDER}/{term:06d}"
        self._leads = leads
        self._ended = Event()
        self._seen_leading = float("-inf")
        self._thread = Thread(target=self._run, name="pulse", daemon=True)

    def start(self) -> None:
        """Begin with a beat.

        Raises:
            SharedDirectoryError: the bucket does not take it.
        """
        self._beat()
        self._thread.start()

    def stop(self) -> None:
        """Say that the manager has ended, so that a successor need not wait; best effort."""
        self._ended.set()
        self._thread.join()
        try:
            self._bucket.put(self._key, _LAST)
        except StoreError as error:
            log.debug("the last beat failed: %s", error)

    @property
    def is_fresh(self) -> bool:
        """Whether no successor can have begun, because the manager still led moments ago."""
        return time.monotonic() - self._seen_leading < DEAD_SECONDS / 2

    def _run(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            try:
                self._beat()
            except StoreError as error:
                log.debug("a beat failed: %s", error)

    def _beat(self) -> None:
        # We take the time before the request, which may last: a successor counts from its end at
        # most.
        began = time.monotonic()
        self._bucket.put(self._key, secrets.token_bytes(8))
        if self._leads():
            self._seen_leading = began


class Watch:
    """Looks at a manager's pulse from another machine.

    Args:
        bucket: where the manager beats.
        term: the manager's term.
        clock: returns seconds of this machine's own clock.
    """

    def __init__(
        self, bucket: Bucket, term: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.term = term
        self._bucket = bucket
        self._clock = clock
        self._beat: bytes | None = None
        self._changed_at = clock()
        self.seen_alive = False

    def is_dead(self) -> bool:
        """Look once; return whether the manager has ended, or has given no sign of life for long.

        Raises:
            SharedDirectoryError: the bucket cannot be read.
        """
        now, beat = self._clock(), self._look()
        if beat == _LAST:
            return True
        if beat != self._beat:
            self.seen_alive = self.seen_alive or self._beat is not None
            self._beat, self._changed_at = beat, now
        return now - self._changed_at >= DEAD_SECONDS

    def _look(self) -> bytes:
        try:
            return self._bucket.get(f"{FOLDER}/{self.term:06d}")
        except FileMissing:
            return b""
