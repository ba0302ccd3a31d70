"""Fetches the blocks of a task's next examples into the machine's cache, while it trains.

A worker knows the whole order of its task. So it fetches each block before a step needs it, in the
order of the steps, with several requests at a time. It stays a bound of bytes ahead, because what
it fetches too early could drive out what is needed sooner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Condition, Thread
from typing import NamedTuple

_FETCHERS = 8


class Need(NamedTuple):
    """A block that a task needs: the first place in its order, and its size."""

    place: int
    block: int
    size_bytes: int


class ReadAhead:
    """Fetches needs, in ascending order of their places; `fetch` gets the number of a block."""

    def __init__(
        self, needs: Sequence[Need], fetch: Callable[[int], object], ahead_bytes: int
    ) -> None:
        self._needs = needs
        self._fetch = fetch
        self._ahead_bytes = ahead_bytes
        self._next, self._reached = 0, 0
        self._changed = Condition()
        for _ in range(min(_FETCHERS, len(needs))):
            # A daemon, because a request may wait for its store longer than a process for its end.
            Thread(target=self._work, name="read ahead", daemon=True).start()

    def reach(self, place: int) -> None:
        """Say that the examples before a place have been read."""
        with self._changed:
            while self._reached < self._next and self._needs[self._reached].place < place:
                self._reached += 1
            self._changed.notify_all()

    def close(self) -> None:
        """Begin no further requests."""
        with self._changed:
            self._next = len(self._needs)
            self._changed.notify_all()

    def _work(self) -> None:
        while (need := self._taken()) is not None:
            with suppress(Exception):  # who reads the block finds the reason, and tries again
                self._fetch(need.block)

    def _taken(self) -> Need | None:
        with self._changed:
            self._changed.wait_for(lambda: self._next == len(self._needs) or self._has_room())
            if self._next == len(self._needs):
                return None
            self._next += 1
            return self._needs[self._next - 1]

    def _has_room(self) -> bool:
        ahead = self._needs[self._reached : self._next]
        return not ahead or sum(need.size_bytes for need in ahead) < self._ahead_bytes
