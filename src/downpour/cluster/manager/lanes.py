"""Threads for a manager's commands: a lane for each kind, as `core/node/effects.py` requires."""

from __future__ import annotations

from collections.abc import Callable

from downpour.cluster.manager.ordered_calls import OrderedCalls
from downpour.cluster.manager.serial_executor import SerialExecutor

CALLS_AT_ONCE = 8
"""Enough to keep the workers busy; each call costs this process a fraction of a millisecond."""

_CLOSING_SECONDS = 30.0
"""The wait for running work when the manager ends; the next manager repeats unfinished work."""

Job = Callable[[], None]


class Lanes:
    """The lanes: calls to workers, work on parameters, evaluations beside it, and preparations."""

    def __init__(self) -> None:
        self._calls = OrderedCalls(CALLS_AT_ONCE)
        self._works = SerialExecutor("work")
        self._evaluations = SerialExecutor("evaluation")

    def call(self, worker: str, job: Job) -> None:
        """Call a worker after all earlier calls to it."""
        self._calls.submit(worker, job)

    def work(self, job: Job) -> None:
        """Run work on parameters after all earlier work."""
        self._works.submit(job)

    @property
    def work_waits(self) -> bool:
        """Whether any work waits for the running one."""
        return self._works.is_behind

    def beside(self, job: Job) -> None:
        """Run an evaluation beside the work."""
        self._evaluations.submit(job)

    def alone(self, job: Job) -> None:
        """Run a job at once, in a separate thread."""
        lane = SerialExecutor("preparation")
        lane.submit(job)
        lane.finish()

    def close(self) -> None:
        """Wait for running work, and begin nothing more."""
        self._calls.close()
        self._works.close(_CLOSING_SECONDS)
        self._evaluations.close(_CLOSING_SECONDS)
