"""Fetches the blocks of a task's next examples into the machine's cache, while it trains.

A worker knows the whole order of its task, and of the shard's next epoch. So it fetches each block
before a step needs it, in the order of the steps, with several requests at a time. It stays a bound
of bytes ahead, because a block that it fetches too early could drive another out of the cache that
a step needs sooner. And it tells the cache when it needs a block again (`BlockPlace.keep_until`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Condition, Thread

from downpour.learning.blocks.formats import Block
from downpour.learning.blocks.places import BlockPlace

_FETCHERS = 8
_GUESSED_SECONDS = 0.001
"""For an example, before any was read."""


@dataclass(frozen=True, slots=True)
class Need:
    """A block, the first and last place in a task's order that needs it, and the next one later.

    Places go on behind the task, for blocks of the next one; `later` is None if none is known.
    """

    block: Block
    first: int
    last: int
    later: int | None


class Pace:
    """How fast these examples are read, with all pauses, over all tasks so far."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._before = self._place = self._count = 0

    def begin(self, count: int) -> None:
        """Begin a task of so many examples."""
        self._before, self._place, self._count = self._before + self._place, 0, count

    def reach(self, place: int) -> None:
        """Say that the task's examples before a place have been read."""
        self._place = place

    def due_at(self, place: int) -> float:
        """Return when a place comes [s since 1970], and later by a task's time.

        So a block is still expected if the training slows down, or waits for others.
        """
        passed = self._before + self._place
        seconds = (time.monotonic() - self._began) / passed if passed else _GUESSED_SECONDS
        return time.time() + (place - self._place + self._count) * seconds


class ReadAhead:
    """Fetches the needs of a task, in the order of their first places."""

    def __init__(
        self, needs: Sequence[Need], place: BlockPlace, pace: Pace, ahead_bytes: int
    ) -> None:
        self._needs = needs
        self._leaving = sorted(needs, key=lambda need: need.last, reverse=True)
        self._place = place
        self._pace = pace
        self._ahead_bytes = ahead_bytes
        self._next, self._reached, self._held_bytes = 0, 0, 0
        self._changed = Condition()
        for _ in range(min(_FETCHERS, len(needs))):
            # A daemon, because a request may wait for its store longer than a process for its end.
            Thread(target=self._work, name="read ahead", daemon=True).start()

    def reach(self, place: int) -> None:
        """Say that the examples before a place have been read; what only they need is too late."""
        self._pace.reach(place)
        with self._changed:
            while self._reached < len(self._needs) and self._needs[self._reached].first < place:
                if self._reached < self._next:
                    self._held_bytes -= self._needs[self._reached].block.size_bytes
                self._reached += 1
            self._next = max(self._next, self._reached)
            self._changed.notify_all()
        while self._leaving and self._leaving[-1].last < place:
            left = self._leaving.pop()
            self._keep(left.block, left.later)

    def close(self) -> None:
        """Begin no further requests."""
        with self._changed:
            self._next = len(self._needs)
            self._changed.notify_all()

    def _keep(self, block: Block, place: int | None) -> None:
        if place is not None:
            self._place.keep_until(block.key, block.begin, block.end, self._pace.due_at(place))

    def _work(self) -> None:
        while (need := self._taken()) is not None:
            block = need.block
            with suppress(Exception):  # who reads the block finds the reason, and tries again
                self._place.read(block.key, block.begin, block.end)
                self._keep(block, need.first)

    def _taken(self) -> Need | None:
        with self._changed:
            self._changed.wait_for(lambda: self._next == len(self._needs) or self._has_room())
            if self._next == len(self._needs):
                return None
            need = self._needs[self._next]
            self._next += 1
            self._held_bytes += need.block.size_bytes
            return need

    def _has_room(self) -> bool:
        return self._next == self._reached or self._held_bytes < self._ahead_bytes
