"""The two interfaces of launchers.

A caller that trains holds a `RunningCluster`: a manager and its workers, wherever they run. An
`Engine` does less: it starts single workers somewhere, and `engine_cluster.py` turns it into a
cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from downpour.cluster.launchers.launch_plan import LaunchPlan
from downpour.cluster.worker.options import WorkerOptions
from downpour.host.credentials import Credentials


class RunningCluster(AbstractContextManager["RunningCluster"], Protocol):
    """A manager and its workers, from `with` until the block ends.

    Entering the block starts them, and raises LaunchError if they cannot start. Leaving it stops
    everything that has started, even after an error.
    """

    @property
    def address(self) -> str:
        """The manager's address, HOST:PORT, as this process reaches it."""

    @property
    def credentials(self) -> Credentials:
        """The credentials of this cluster's clients."""

    @property
    def log(self) -> Path:
        """The file to which the processes write their logs."""

    @property
    def workers(self) -> Sequence[str]:
        """The names of workers that run, or that the launcher will restart."""

    def check(self) -> None:
        """Restart processes that need it; called often.

        Raises:
            LaunchError: the cluster cannot go on.
        """

    def provide(self, wanted: int, idle: Collection[str] = ()) -> None:
        """Start further workers that a policy asked for, until `wanted` of them have been started.

        If the plan says so, the launcher gives such workers back when they have been `idle` for a
        while.
        """


Launcher = Callable[[LaunchPlan], RunningCluster]
"""Makes a cluster from a plan; starts nothing yet."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a worker: its exit status (None: unknown), and its last words."""

    status: int | None
    reason: str = ""


class Engine(Protocol):
    """Starts workers somewhere, and knows which of them have ended."""

    @property
    def manager_host(self) -> str:
        """This machine's address as the workers reach it; a loopback address if they run here."""

    def check(self, plan: LaunchPlan) -> None:
        """Refuse a plan that cannot work, before anything starts; may reserve what workers need.

        Unless this raises, the caller must call `close` at the end.

        Raises:
            LaunchError: the first obstacle, with the host's name.
        """

    def start(self, worker: WorkerOptions, environment: Mapping[str, str], log: Path) -> None:
        """Start a worker with further environment variables; returns at once.

        The worker appends its log to the file `log`, on this machine or in the shared directory. A
        replacement takes over the name of the worker that has ended.

        Raises:
            LaunchError: the worker cannot start now.
        """

    def ended(self) -> Mapping[str, Ended]:
        """Return the workers that have ended since the last call, by name."""

    def stop(self, name: str) -> None:
        """Tell a worker to leave; returns at once."""

    def close(self) -> None:
        """Stop all workers that were started, and wait until they have ended."""
