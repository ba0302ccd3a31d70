"""Who is there to train, what each is busy with, and when each was last heard of.

It keeps names and times, and moves workers by their table. It knows nothing of rounds: that what a
worker is busy with is a task somebody wants is the scheduler's care.
"""

from __future__ import annotations

from collections.abc import Iterator, KeysView

from downpour.scheduler.lifecycle import WORKER, Lifecycle
from downpour.values import AttemptId, Progress, SystemState


class Worker:
    """One registered worker.

    `mentioned_at_seconds` is when it last said that it is running its attempt, or when it was asked
    to.
    """

    def __init__(self, name: str, at_seconds: float) -> None:
        self.name = name
        self.life = Lifecycle(f"worker {name}", WORKER, "idle")
        self.seen_at_seconds = at_seconds
        self.running: AttemptId | None = None
        self.mentioned_at_seconds = at_seconds
        self.progress: Progress | None = None
        self.system: SystemState | None = None
        self.tasks_done = 0


class Workers:
    """The living workers; those idle are kept in the order in which they became so."""

    def __init__(self) -> None:
        self._all: dict[str, Worker] = {}
        self._idle: dict[str, None] = {}

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._all.values())

    def __len__(self) -> int:
        return len(self._all)

    def get(self, name: str) -> Worker | None:
        """Return the worker of that name, or None where it is not (or no longer) here."""
        return self._all.get(name)

    @property
    def names(self) -> KeysView[str]:
        """Names of all who are here; a view that changes with them."""
        return self._all.keys()

    @property
    def idle(self) -> KeysView[str]:
        """Names of the idle, the one that has waited longest first; a view that changes."""
        return self._idle.keys()

    @property
    def any_idle(self) -> bool:
        """Whether somebody is idle."""
        return bool(self._idle)

    def join(self, name: str, at_seconds: float) -> None:
        """Add a worker, idle."""
        self._all[name] = Worker(name, at_seconds)
        self._idle[name] = None

    def hear(self, name: str, at_seconds: float) -> Worker | None:
        """Note a sign of life; returns the worker, or None where it is not here."""
        worker = self._all.get(name)
        if worker is not None:
            worker.seen_at_seconds = at_seconds
        return worker

    def assign(self, name: str, attempt: AttemptId, at_seconds: float) -> None:
        """Make an idle worker busy with an attempt."""
        worker = self._all[name]
        worker.life.step("assign")
        worker.running = attempt
        worker.mentioned_at_seconds = at_seconds
        worker.progress = None
        del self._idle[name]

    def release(self, name: str, attempt: AttemptId) -> bool:
        """Make a worker idle if it is busy with this attempt; says whether it was."""
        worker = self._all.get(name)
        if worker is None or worker.running != attempt:
            return False
        worker.life.step("release")
        worker.running = None
        worker.progress = None
        self._idle[name] = None
        return True

    def remove(self, name: str) -> Worker | None:
        """Take a worker out; returns it as it was, or None where it is not here."""
        worker = self._all.pop(name, None)
        if worker is not None:
            worker.life.step("go")
            self._idle.pop(name, None)
        return worker
