"""The two interfaces of launchers, and a launcher's plan.

A caller that trains holds a `RunningCluster`: a manager and its workers, wherever they run. An
`Engine` does less: it starts single workers somewhere, and `cluster.py` turns it into a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Protocol, Self

from downpour.base import options
from downpour.base.names import AUTO
from downpour.base.options import checked_seconds, option
from downpour.base.values import checked_labels
from downpour.cluster.options import ManagerOptions, WorkerOptions
from downpour.host.paths import TOKEN_NAME, Credentials

ALONE_SECONDS = 60.0
"""The lease of a run's worker. The launcher replaces a dead manager within seconds. If one stays
away for longer, someone killed the run, and the worker gives back what it was lent."""


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """A manager and its workers, before anything starts.

    While they run, straggler policies may ask for more workers, at most `workers` more. The
    launcher gives these back once they have been idle for `idle_seconds`; with 0 they stay. A
    worker computes with `threads` threads on `device`, and has `labels`. Only workers whose labels
    meet the experiment's `needs` may train it, so a launcher that knows its machines' labels uses
    only machines that meet them. The process that forks the manager first imports what the
    experiment's code `imports` from packages. Workers and manager have the same `loaders`.
    """

    manager: ManagerOptions
    workers: int
    _: KW_ONLY
    threads: int = 1
    device: str = AUTO
    idle_seconds: float = option(
        0.0,
        "Give back a worker that a policy asked for after it has been idle for this long; 0: keep "
        "it. Inline workers, and those of one run with `--on local`, stay.",
        "X",
    )
    labels: tuple[str, ...] = option(
        (),
        "A label for all workers that the command starts; specs and shards can require labels. "
        "Repeatable.",
        "KEY=VALUE",
        default=False,
        flag="--label",
    )
    loaders: str = options.loaders()
    needs: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check what users may set."""
        checked_seconds("idle_seconds", self.idle_seconds)
        checked_labels(self.labels)
        object.__setattr__(self, "manager", replace(self.manager, loaders=self.loaders))

    def worker(self, number: int, address: str) -> WorkerOptions:
        """Return how to start worker `number`, from 1; it accepts its user's code."""
        return WorkerOptions(
            manager=address,
            shared=self.manager.shared,
            name=f"worker-{number}",
            device=self.device,
            place=number - 1,
            labels=self.labels,
            loaders=self.loaders,
            accepts_code=True,
            alone_seconds=ALONE_SECONDS if self.manager.embedded else 0.0,
            credentials=self.manager.credentials,
        )

    def reached_at(self, host: str) -> Self:
        """Return the plan with the manager at this host; other hosts than loopback need a token."""
        # Import it here: help texts import this module, and must not wait for numpy.
        from downpour.network.rpc import Address

        manager = replace(self.manager, host=host)
        if not Address(host, 0).is_loopback and manager.credentials == Credentials():
            token = Path(manager.shared) / TOKEN_NAME
            manager = replace(manager, credentials=Credentials(token_file=str(token)))
        return replace(self, manager=manager)


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

        If the plan says so, the launcher gives back workers that have been `idle` for a while.
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
