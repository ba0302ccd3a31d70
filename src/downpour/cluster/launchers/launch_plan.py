"""A launcher's plan: a manager, and workers of one kind."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Self

from downpour.cluster.manager.options import ManagerOptions
from downpour.cluster.worker.options import WorkerOptions
from downpour.host.credentials import TOKEN_NAME, Credentials

ALONE_SECONDS = 60.0
"""The lease of a run's worker: if its manager stays away for longer, the run was killed, and the
worker gives back what it was lent. A manager that dies is replaced within seconds."""


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """A manager and its workers, before anything is started.

    Straggler policies may ask for more workers while they run, `workers` more at most. The launcher
    gives these back when they have been idle for `idle_seconds`; 0: they stay. A worker computes
    with `threads` threads on `device`, and has `labels`. Workers train only where they have what
    the experiment `needs`, so a launcher that knows the labels of its machines uses no others.
    """

    manager: ManagerOptions
    workers: int
    _: KW_ONLY
    threads: int = 1
    device: str = "cpu"
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
        """Return the plan with the manager at an address; others than loopback take a token."""
        # Here, because help texts import this module, and this imports numpy.
        from downpour.network.rpc import Address

        manager = replace(self.manager, host=host)
        if not Address(host, 0).is_loopback and manager.credentials == Credentials():
            token = Path(manager.shared) / TOKEN_NAME
            manager = replace(manager, credentials=Credentials(token_file=str(token)))
        return replace(self, manager=manager)
