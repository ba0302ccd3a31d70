"""The lanes of a simulated manager's commands: queues in virtual time."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable

from downpour.core.scheduler import Scheduler
from downpour.core.scheduler import events as on
from downpour.virtual.simulated.clock import Process

Done = Callable[[], None]
Job = Callable[[Done], None]


class Lane:
    """Runs jobs one after the other; each job calls `done` at its end."""

    __slots__ = ("_busy", "_jobs")

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()
        self._busy = False

    def submit(self, job: Job) -> None:
        """Run a job after all earlier ones."""
        self._jobs.append(job)
        if not self._busy:
            self._next()

    def _next(self) -> None:
        self._busy = bool(self._jobs)
        if self._jobs:
            self._jobs.popleft()(self._next)


class Commander(Process):
    """A process that orders commands, and gets their results as events."""

    core: Scheduler
    term: int

    @property
    @abstractmethod
    def now_seconds(self) -> float:
        """The experiment time."""

    @abstractmethod
    def post(self, event: on.Event) -> None:
        """Queue an event."""

    @abstractmethod
    def crash(self, why: str) -> None:
        """Die at once."""
