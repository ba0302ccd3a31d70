"""A manager, workers and their client, which end together."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from downpour.cluster.launchers import LaunchPlan, RunningCluster, launcher_of
from downpour.cluster.manager.options import ManagerOptions
from downpour.core.spec import Spec
from downpour.experiments.client import Client
from downpour.experiments.running.surroundings import Surroundings
from downpour.files.store import SharedDirectory


@contextmanager
def embed(
    spec: Spec, workers: int, surroundings: Surroundings
) -> Iterator[tuple[RunningCluster, Client]]:
    """Run a manager, workers and their client until the block ends.

    They train any number of experiments, one after the other. This spec sets the number of threads,
    the device and what every worker needs.
    """
    root = SharedDirectory.open(surroundings.shared, create=True).root
    options = ManagerOptions(
        shared=str(root),
        port=0,
        data_dir=str(surroundings.data_dir or ""),
        patience=surroundings.patience,
        embedded=True,
        run=secrets.token_hex(8),
    )
    plan = LaunchPlan(options, workers, threads=spec.threads, device=spec.device, needs=spec.needs)
    # The environment's credentials belong to another cluster.
    with (
        launcher_of(surroundings.on)(plan) as cluster,
        Client(
            cluster.address, shared=root, credentials=cluster.credentials, follow=False
        ) as client,
    ):
        yield cluster, client
