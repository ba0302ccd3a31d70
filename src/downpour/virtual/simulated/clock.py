"""Virtual time, the queue of actions in it, and the processes that own them."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from struct import pack
from typing import Any

import xxhash

Action = Callable[..., None]


class Clock:
    """A queue of actions; actions due at the same time run in the order of their addition."""

    def __init__(self) -> None:
        self.now_seconds = 0.0
        self.steps = 0
        self._heap: list[tuple[float, int, Action, tuple[Any, ...]]] = []
        self._count = 0
        self._trace = xxhash.xxh3_64()

    def after(self, seconds: float, action: Action, *args: Any) -> None:
        """Add an action that runs after some seconds."""
        # The count keeps actions of one moment in the order of their addition, and the heap never
        # compares two actions.
        self._count += 1
        heappush(self._heap, (self.now_seconds + seconds, self._count, action, args))

    def step(self) -> bool:
        """Run the next action; return whether there was one."""
        if not self._heap:
            return False
        self.now_seconds, _, action, args = heappop(self._heap)
        self.steps += 1
        self._trace.update(pack("d", self.now_seconds))
        action(*args)
        return True

    @property
    def digest(self) -> str:
        """A digest of the times of everything that has happened so far."""
        # Almost every action draws how long it takes, so two runs that differ anywhere also have
        # different digests.
        return self._trace.hexdigest()


class Process:
    """A process that can stand still for a while, and die; a restart makes another object.

    All its actions go through `after` or `do`. `host` is the machine that it runs on, `role` the
    interface that it serves.
    """

    role = ""

    def __init__(self, clock: Clock, host: str) -> None:
        self.clock = clock
        self.host = host
        self.alive = True
        self._still_until = 0.0

    def after(self, seconds: float, action: Action, *args: Any) -> None:
        """Run an action after some seconds, if the process is still alive."""
        self.clock.after(seconds, self.do, action, args)

    def do(self, action: Action, args: tuple[Any, ...]) -> None:
        """Run an action now; later if the process stands still, and never if it is dead."""
        if not self.alive:
            return
        still = self._still_until - self.clock.now_seconds
        if still > 0:
            self.clock.after(still, self.do, action, args)
        else:
            action(*args)

    def stand_still(self, seconds: float) -> None:
        """Run no actions for a while, like a suspended or swapped-out process."""
        self._still_until = self.clock.now_seconds + seconds

    def connection_ended(self, host: str) -> None:
        """Note that the connections from a host have ended; only some processes react."""

    def die(self) -> None:
        """Run no actions from now on."""
        self.alive = False
