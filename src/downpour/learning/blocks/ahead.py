"""Fetches the blocks of a task's next examples into the machine's cache, while it trains.

A worker knows the whole order of its task. So it fetches each block before a step needs it, in the
order of the steps, with several requests at a time. It stays a bound of bytes ahead, because a
block that it fetches too early could drive another out of the cache that a step needs sooner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Condition, Thread

from downpour.learning.blocks.formats import Block

_FETCHERS = 8


class ReadAhead:
    """Fetches `needs`: blocks, each with the first place in a task's order that needs it."""

    def __init__(
        self, needs: Sequence[tuple[int, Block]], fetch: Callable[[Block], object], ahead_bytes: int
    ) -> None:
        self._needs = needs
        self._fetch = fetch
        self._ahead_bytes = ahead_bytes
        self._next, self._reached, self._held_bytes = 0, 0, 0
        self._changed = Condition()
        for _ in range(min(_FETCHERS, len(needs))):
            # A daemon, because a request may wait for its store longer than a process for its end.
            Thread(target=self._work, name="read ahead", daemon=True).start()

    def reach(self, place: int) -> None:
        """Say that the examples before a place have been read; what only they need is too late."""
        with self._changed:
            while self._reached < len(self._needs) and self._needs[self._reached][0] < place:
                if self._reached < self._next:
                    self._held_bytes -= self._needs[self._reached][1].size_bytes
                self._reached += 1
            self._next = max(self._next, self._reached)
            self._changed.notify_all()

    def close(self) -> None:
        """Begin no further requests."""
        with self._changed:
            self._next = len(self._needs)
            self._changed.notify_all()

    def _work(self) -> None:
        while (block := self._taken()) is not None:
            with suppress(Exception):  # who reads the block finds the reason, and tries again
                self._fetch(block)

    def _taken(self) -> Block | None:
        with self._changed:
            self._changed.wait_for(lambda: self._next == len(self._needs) or self._has_room())
            if self._next == len(self._needs):
                return None
            block = self._needs[self._next][1]
            self._next += 1
            self._held_bytes += block.size_bytes
            return block

    def _has_room(self) -> bool:
        return self._next == self._reached or self._held_bytes < self._ahead_bytes
