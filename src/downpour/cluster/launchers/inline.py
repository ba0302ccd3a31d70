"""A manager and workers in threads of this process, for a debugger and for notebooks.

A breakpoint in a user's task stops there, with the caller's frames above it. Everything else works
as with processes, and gives the same bytes of the model: messages go through sockets, parameters
through files. Workers take turns at each step, because they share the process's random generators.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Self

from downpour.base.errors import DownpourError, LaunchError, SpecError
from downpour.cluster.launchers import LauncherKind, LaunchPlan
from downpour.cluster.launchers.cluster import new_log
from downpour.host.paths import Credentials, known_secrets
from downpour.host.process import THREADS

if TYPE_CHECKING:
    from downpour.cluster.manager.process import Manager
    from downpour.cluster.worker.agent import WorkerAgent

log = logging.getLogger(__name__)


class InlineCluster:
    """A context manager: inside it, a manager and its workers run in threads of this process."""

    def __init__(self, plan: LaunchPlan) -> None:
        self._plan = plan
        self._threads: list[Thread] = []
        self._agents: list[WorkerAgent] = []
        self._closing = Event()
        self._reasons: list[DownpourError] = []
        self._running = ExitStack()
        self.address = ""
        self.log = Path()

    @property
    def credentials(self) -> Credentials:
        """The credentials of this cluster's clients."""
        return self._plan.manager.credentials

    @property
    def workers(self) -> list[str]:
        """The names of the workers that run."""
        return [worker.name for worker in self._threads if worker.is_alive()]

    def __enter__(self) -> Self:
        """Start the manager, and then all workers."""
        # Imported here, because these import torch, which the launcher of processes does without.
        from downpour.cluster.manager.process import start_manager
        from downpour.files.process_log import kept_log
        from downpour.files.store import SharedDirectory

        shared = Path(self._plan.manager.shared)
        self.log = new_log(shared)
        with ExitStack() as starting:
            starting.enter_context(_logging_to(self.log))
            secrets = known_secrets(self.credentials)
            kept = kept_log(SharedDirectory(shared), "inline", secrets, owns_process=False)
            starting.enter_context(kept)
            try:
                options = replace(self._plan.manager, loaders="0")
                manager = start_manager(options, self._reasons.append)
            except DownpourError as error:
                raise _launch_error(error) from error
            starting.callback(manager.close)
            self.address = str(manager.address)
            starting.callback(self._leave)
            THREADS.start("manager", self._look_around, manager)
            for _ in range(self._plan.workers):
                self._add()
            self._running = starting.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the workers, then the manager."""
        self._running.close()

    def provide(self, wanted: int, idle: Collection[str] = ()) -> None:
        """Start further workers, up to `wanted`, but no more than the plan began with."""
        del idle  # they end with this process anyway
        while len(self._threads) < self._plan.workers + min(wanted, self._plan.workers):
            self._add()

    def check(self) -> None:
        """Raise LaunchError if the manager, or the last of the workers, has ended."""
        if self._threads and not any(worker.is_alive() for worker in self._threads):
            self._reasons.append(LaunchError("all workers have ended"))
        if self._reasons:
            raise _launch_error(self._reasons[0])

    def _add(self) -> None:
        number = len(self._threads) + 1
        self._threads.append(THREADS.start(f"worker-{number}", self._work, number))

    def _work(self, number: int) -> None:
        from downpour.cluster.worker.process import run_worker

        # The worker takes no code from the manager, because both share this process's modules. No
        # part has loaders, because each would run the user's script once more.
        worker = self._plan.worker(number, self.address)
        worker = replace(worker, accepts_code=False, loaders="0")
        try:
            run_worker(worker, lambda *_: None, obey=self._obey)
        except DownpourError as error:
            self._reasons.append(error)
        except Exception as error:
            log.exception("worker-%s died", number)
            self._reasons.append(LaunchError(f"worker-{number}: {type(error).__name__}: {error}"))

    def _obey(self, agent: WorkerAgent) -> None:
        self._agents.append(agent)
        if self._closing.is_set():  # it was still importing when the others got the order to leave
            agent.leave()

    def _look_around(self, manager: Manager) -> None:
        from downpour.core.node.manager import LOOK_SECONDS

        while not self._closing.wait(LOOK_SECONDS):
            manager.look_around()

    def _leave(self) -> None:
        self._closing.set()
        for agent in self._agents:
            agent.leave()
        for worker in self._threads:
            worker.join()


def _launch_error(error: DownpourError) -> LaunchError:
    return LaunchError(str(error), asked_wrongly=error.exit_status == SpecError.exit_status)


@contextmanager
def _logging_to(file: Path) -> Iterator[None]:
    """Also write this package's log to a file."""
    handler = logging.FileHandler(file)
    handler.setFormatter(logging.Formatter("%(asctime)s %(threadName)s %(name)s: %(message)s"))
    logger = logging.getLogger("downpour")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()


KIND = LauncherKind(title="Inline", make=lambda _: InlineCluster)
