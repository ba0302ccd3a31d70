"""The supervisor: a process that starts a cluster, repairs it, and ends it on request.

The manager runs beside the supervisor, which holds the workers' tethers. So all of them end with
the supervisor, even if someone kills it. It reads its plan as JSON from standard input.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from setproctitle import setproctitle

from downpour.base.errors import DownpourError, LaunchError
from downpour.cluster.launchers import kind_of
from downpour.cluster.launchers.base import Launcher, RunningCluster
from downpour.cluster.launchers.cluster_files import ClusterFiles, ClusterInfo, StopRequest
from downpour.cluster.launchers.launch_plan import LaunchPlan
from downpour.cluster.launchers.local_engine import here
from downpour.cluster.launchers.restarts import LASTING_SECONDS, PAUSES_SECONDS
from downpour.host.signals import waiting_for_leave
from downpour.host.text import set_up_log
from downpour.network.rpc import ManagerClient, Status, Trust, WorkerClient, parse_address

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedPlan:
    """A supervisor's orders: a plan, and the launcher `on` with its options."""

    on: str
    options: Mapping[str, Any]
    plan: LaunchPlan

    @property
    def launcher(self) -> Launcher:
        """The launcher of the plan; on this machine, one that restarts workers."""
        return here if self.on == "local" else kind_of(self.on).launcher(self.options)


class Supervisor:
    """Keeps one cluster running, until someone asks for its end.

    Args:
        on: the launcher's name.
        plan: what to start.
        launcher: what starts it.
        wait: called with the seconds to wait; returns early, and true, when a signal asks this
            process to end.
    """

    def __init__(
        self, on: str, plan: LaunchPlan, launcher: Launcher, wait: Callable[[float], bool]
    ) -> None:
        self._plan = plan
        self._launcher = launcher
        self._wait = wait
        self._folder = ClusterFiles(Path(plan.manager.shared))
        self._told = ClusterInfo(on=on, hostname=socket.gethostname(), pid=os.getpid())
        self._written: ClusterInfo | None = None

    def keep(self) -> None:
        """Start the cluster, and restart it whenever it ends on its own.

        Raises:
            LaunchError: the directory has a cluster already, or the first start fails.
        """
        with self._folder.kept():
            self._tell(state="starting")
            pauses = iter(PAUSES_SECONDS)
            began_seconds = time.monotonic()
            while (trouble := self._trouble()) is not None:
                log.warning("%s; the supervisor restarts it", trouble)
                self._tell(state="starting", trouble=str(trouble))
                if time.monotonic() - began_seconds >= LASTING_SECONDS:
                    pauses = iter(PAUSES_SECONDS)
                if self._wait_for_stop(next(pauses, PAUSES_SECONDS[-1])) is not None:
                    return
                began_seconds = time.monotonic()

    def _trouble(self) -> LaunchError | None:
        """Serve; return why the cluster has ended on its own, None after an orderly end."""
        try:
            self._serve()
        except LaunchError as error:
            if not self._told.manager:  # it has never been up, so its user still waits
                raise
            return error
        return None

    def _serve(self) -> None:
        """Run the cluster until its orderly end; raises LaunchError if it ends on its own."""
        with self._launcher(self._plan) as cluster:
            trust = Trust.load(cluster.credentials)
            with ManagerClient(parse_address(cluster.address), trust=trust) as manager:
                self._tell(
                    state="up",
                    manager=cluster.address,
                    token_file=self._folder.inside(cluster.credentials.token_file),
                    log=str(cluster.log),
                    trouble="",
                )
                stop = self._look_after(cluster, manager)
                self._tell(state="stopping")
                _drain(manager, trust, stop.drain_seconds, self._wait)

    def _look_after(self, cluster: RunningCluster, manager: ManagerClient) -> StopRequest:
        """Restart dead processes, and start workers for policies, until someone asks to stop."""
        while True:
            cluster.check()
            status = _status(manager)
            if status is not None:
                cluster.provide(status.wanted_workers, status.idle_workers)
                ours = [one for one in status.workers if one.worker in cluster.workers]
                self._tell(
                    registered=tuple(sorted(one.worker for one in ours)),
                    devices=tuple(sorted({one.device for one in ours})),
                )
            self._tell(workers=tuple(cluster.workers))
            stop = self._wait_for_stop(LOOK_SECONDS)
            if stop is not None:
                return stop

    def _wait_for_stop(self, seconds: float) -> StopRequest | None:
        if self._wait(seconds):
            return StopRequest()
        try:
            return self._folder.stop_request()
        except DownpourError as error:  # the directory is away, or a later version wrote this
            log.warning("%s", error)
            return None

    def _tell(self, **changes: Any) -> None:
        """Describe the cluster again, if anything has changed."""
        self._told = replace(self._told, **changes)
        if self._told != self._written:
            with suppress(DownpourError):  # the directory is away; the next time will do
                self._folder.write(self._told)
                self._written = self._told


def _status(manager: ManagerClient) -> Status | None:
    """Return a manager's status; None if it does not answer now."""
    with suppress(DownpourError):
        return manager.status()
    return None


def _drain(
    manager: ManagerClient, trust: Trust, seconds: float, wait: Callable[[float], bool]
) -> None:
    """Tell all workers to finish their tasks and leave, and wait until they have."""
    deadline = time.monotonic() + seconds
    status = _status(manager) if seconds else None
    for worker in status.workers if status else ():
        with (
            suppress(DownpourError),
            WorkerClient(parse_address(worker.address), trust=trust) as one,
        ):
            one.drain()
    while status and status.workers and time.monotonic() < deadline:
        if wait(LOOK_SECONDS):
            return
        status = _status(manager)


def main() -> int:
    """Keep the requested cluster running; returns the exit status."""
    set_up_log(logging.WARNING, "%(asctime)s %(levelname)s %(name)s: %(message)s")
    setproctitle("downpour: supervisor")
    kept = TypeAdapter(SupervisedPlan).validate_json(sys.stdin.buffer.read())
    try:
        Supervisor(kept.on, kept.plan, kept.launcher, waiting_for_leave()).keep()
    except DownpourError as error:
        sys.stderr.write(f"downpour: {error}\n")
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
