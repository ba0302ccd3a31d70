"""A launcher's plan: a manager, and workers of one kind."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Self

from downpour.base.devices import AUTO
from downpour.cluster.manager.options import ManagerOptions
from downpour.cluster.worker.options import WorkerOptions
from downpour.host.credentials import TOKEN_NAME, Credentials

ALONE_SECONDS = 60.0
"""The lease of a run's worker. The launcher replaces a dead manager within seconds. If a manager
stays away for longer than the lease, someone killed the run, and the worker gives back what it was
lent."""


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """A manager and its workers, before anything starts.

    While they run, straggler policies may ask for more workers, at most `workers` more. The
    launcher gives these back once they have been idle for `idle_seconds`; with 0 they stay. A
    worker computes with `threads` threads on `device`, and has `labels`. Only workers whose labels
    meet the experiment's `needs` may train it, so a launcher that knows its machines' labels uses
    only machines that meet them.
    """

    manager: ManagerOptions
    workers: int
    _: KW_ONLY
    threads: int = 1
    device: str = AUTO
    idle_seconds: float = 0.0
    labels: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()

    def worker(self, number: int, address: str) -> WorkerOptions:
        """Return how to start a worker of the manager at `address`; workers count from 1.

        It accepts code, because the same user starts the manager and the worker.
        """
        return WorkerOptions(
            manager=address,
            shared=self.manager.shared,
            name=f"worker-{number}",
            device=self.device,
            place=number - 1,
            labels=self.labels,
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
