"""A manager and workers on this machine.

The launcher itself never imports torch. All its processes end with it: on `close`, on an error, on
Ctrl-C, and when someone kills it, because the fork server then reads the end of its input. It
restarts processes that die from a signal: a worker, the manager (which continues from its journal),
or the fork server with all its children.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

import psutil

from downpour.base.errors import LaunchError
from downpour.cluster.launchers.base import LaunchPlan
from downpour.cluster.launchers.forking import ForkServerProcess, Restarts
from downpour.cluster.launchers.kinds import LauncherKind
from downpour.cluster.worker.options import training_environment
from downpour.host.paths import Credentials, known_secrets
from downpour.host.process import signal_group

log = logging.getLogger(__name__)

KEPT = 20
_NAME = re.compile(r"\d{8}-\d{6}-\d{1,9}")


def new_log(shared: Path) -> Path:
    """Return the path of this process's log in a shared directory, and remove the oldest logs.

    Other files stay where they are, and so do logs of processes that are alive on this machine.
    """
    folder = shared / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    written = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]
    for path in sorted(written, key=lambda path: path.name, reverse=True)[KEPT - 1 :]:
        if not psutil.pid_exists(int(path.name.rpartition("-")[2])):
            with suppress(OSError):  # another run has removed it, or it is another user's
                path.unlink()
    return folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


START_SECONDS = 120.0
MANAGER = "manager"
RESTARTS_MAX = 10
"""The restarts of a manager that keeps dying early: its next restart would fail, too."""


@dataclass(slots=True)
class _Place:
    """A worker's number, and the number of its restarts."""

    number: int
    restarts: Restarts
    is_over: bool = False


class LocalCluster:
    """A context manager: inside it, a manager and its workers are running."""

    def __init__(self, plan: LaunchPlan, now: Callable[[], float] = time.monotonic) -> None:
        self._plan = plan
        self._now = now
        self._provided = 0
        self._places: dict[str, _Place] = {}
        self._manager = plan.manager
        self._manager_restarts = Restarts(now)
        self._kept_log = ExitStack()
        self.address = ""
        self.log = Path()

    @property
    def credentials(self) -> Credentials:
        """The credentials of this cluster's clients."""
        return self._plan.manager.credentials

    @property
    def workers(self) -> list[str]:
        """The names of workers that run, or that the launcher will restart."""
        return [name for name, place in self._places.items() if not place.is_over]

    def __enter__(self) -> Self:
        """Start the fork server, the manager, and then all workers at once."""
        # Import it here: help texts import this module, and must not wait for numpy.
        from downpour.files.logs.process_log import kept_log
        from downpour.files.store import SharedDirectory

        shared = Path(self._plan.manager.shared)
        self.log = new_log(shared)
        self._server = self._new_server()
        try:
            # Keep this process's log, too, because only the launcher can tell which processes have
            # died.
            secrets = known_secrets(self.credentials)
            kept = kept_log(SharedDirectory(shared), "launcher", secrets, owns_process=False)
            self._kept_log.enter_context(kept)
            self._start_manager()
            for _ in range(self._plan.workers):
                self._add()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop everything."""
        self.close()

    def close(self) -> None:
        """Stop workers and manager; returns when all have ended or were killed."""
        try:
            self._server.close()
        finally:
            self._kept_log.close()

    def provide(self, wanted: int, idle: Collection[str] = ()) -> None:
        """Start further workers, up to `wanted`, but no more than the plan began with."""
        del idle  # they end with this process anyway
        # Bounded, because a policy asks for workers without knowing this machine's cores.
        while self._provided < min(wanted, self._plan.workers):
            self._provided += 1
            self._add()

    def process_of(self, name: str) -> int | None:
        """Return the current process of the manager or a worker; None while it has none."""
        return self._server.process_of(name)

    def kill(self, name: str, *, again: bool) -> None:
        """Kill the manager or a worker, as a crash would.

        With `again`, the launcher restarts a worker; otherwise the worker stays away, like a
        machine that died. The launcher always restarts the manager.
        """
        if name in self._places and not again:
            self._places[name].is_over = True
        process = self.process_of(name)
        if process is not None:
            signal_group(process, signal.SIGKILL)

    def check(self) -> None:
        """Restart processes that a signal has ended.

        Raises:
            LaunchError: the manager, or the last of the workers, has ended on its own.
        """
        if self._server.is_over:
            self._begin_again()
        elif (status := self._server.exit_status(MANAGER)) is not None:
            if status >= 0:
                raise self._server.error_of(MANAGER)
            self._restart_manager()
        for name, place in self._places.items():
            self._look_after(name, place)
        if self._places and all(place.is_over for place in self._places.values()):
            raise self._server.error_of(min(self._places))

    def _look_after(self, name: str, place: _Place) -> None:
        """Restart a worker that a signal has ended: first at once, then after growing pauses."""
        status = self._server.exit_status(name)
        if status is None or place.is_over:
            return
        place.is_over = status >= 0  # it has left, or says what is wrong
        if not place.is_over and place.restarts.is_due():
            log.warning("%s died from signal %d; restarting it", name, -status)
            place.restarts.begin()
            self._server.forget(name)
            self._start_worker(place)

    def _begin_again(self) -> None:
        """Replace a fork server that has died, and restart its processes."""
        log.warning(
            "the fork server has died, so the launcher restarts all processes; see %s", self.log
        )
        self._server.close()
        self._server = self._new_server()
        self._restart_manager()
        for place in self._places.values():
            if not place.is_over:
                self._start_worker(place)

    def _restart_manager(self) -> None:
        """Start a manager at the dead one's address; it continues where the dead one ended."""
        if self._manager_restarts.count >= RESTARTS_MAX:
            raise self._server.error_of(MANAGER)
        self._manager_restarts.begin()
        port = int(self.address.rpartition(":")[2])
        self._manager = replace(self._manager, port=port, restarts=self._manager.restarts + 1)
        log.warning("the manager has died, so the launcher starts another one")
        self._server.forget(MANAGER)
        self._start_manager()

    def _new_server(self) -> ForkServerProcess:
        return ForkServerProcess(self.log, training_environment(self._plan.threads))

    def _start_manager(self) -> None:
        self._server.request(MANAGER, MANAGER, asdict(self._manager))
        self.address = self._server.wait_for_address(MANAGER, START_SECONDS)

    def _add(self) -> None:
        number = len(self._places) + 1
        place = _Place(number, Restarts(self._now))
        self._places[self._plan.worker(number, "").name] = place
        self._start_worker(place)

    def _start_worker(self, place: _Place) -> None:
        worker = self._plan.worker(place.number, self.address)
        try:
            self._server.request("worker", worker.name, asdict(worker))
        except LaunchError:
            if not self._server.is_over:
                raise
            # The next look finds the fork server dead, and restarts everything.


KIND = LauncherKind(title="Local", make=lambda _: LocalCluster)
