"""Runs workers as single processes of this machine, and restarts each one that dies."""

from __future__ import annotations

import socket

from downpour.cluster.launchers.engine_cluster import PlacedCluster
from downpour.cluster.launchers.hosts import SLOTS_MAX, Host
from downpour.cluster.launchers.launch_plan import LaunchPlan
from downpour.cluster.launchers.tether import TetheredWorkers


class LocalEngine(TetheredWorkers):
    """Starts each worker with a separate shell; the manager listens at `manager_host`.

    Each worker imports torch for itself, so a fork server (`local.py`) starts them sooner. But that
    one never starts a worker again.
    """

    def __init__(self, manager_host: str) -> None:
        self.manager_host = manager_host
        here = Host(socket.gethostname(), slots=SLOTS_MAX)
        super().__init__([here], lambda _, script: ["/bin/sh", "-c", script])

    def check(self, plan: LaunchPlan) -> None:
        """Refuse nothing, because this machine is always available."""


def here(plan: LaunchPlan) -> PlacedCluster:
    """Return a cluster of this machine's processes."""
    return PlacedCluster(plan, LocalEngine(plan.manager.host))
