"""Trains one spec to its end with its own manager and workers."""

from __future__ import annotations

import logging
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from downpour.base.errors import ExperimentFailed, NotBegun, SpecError
from downpour.base.names import AUTO
from downpour.cluster.launchers import LaunchPlan, RunningCluster, launcher_of
from downpour.cluster.launchers.cluster import START_SECONDS, PlacedCluster, fork_server
from downpour.cluster.launchers.forkserver import ForkServerProcess
from downpour.cluster.manager.start_file import start_of
from downpour.cluster.options import ManagerOptions
from downpour.core.resolve import LocalOptimizer, resolve
from downpour.core.spec import ResolvedSpec, Spec
from downpour.experiments.client import Client
from downpour.experiments.running.surroundings import Surroundings, resumed_by, workers_for
from downpour.experiments.running.watching import Watching, disturbing
from downpour.files.store import SharedDirectory
from downpour.files.store.model_files import experiments_at
from downpour.learning.intra_worker.choice import settled
from downpour.learning.tasks import check_named
from downpour.learning.training.trainer import trainer_of
from downpour.learning.user_code import package_imports
from downpour.network.rpc.messages import Status
from downpour.record import Result

log = logging.getLogger(__name__)


@contextmanager
def embed(
    spec: Spec, workers: int, surroundings: Surroundings, server: ForkServerProcess | None = None
) -> Iterator[tuple[RunningCluster, Client]]:
    """Run a manager, workers and their client until the block ends.

    They train any number of experiments, one after the other. This spec sets the number of threads,
    the device and what every worker needs. Processes are forks of `server`, if one runs already.
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
    plan = LaunchPlan(
        options,
        workers,
        threads=spec.threads,
        device=spec.device,
        needs=spec.needs,
        imports=package_imports(spec),
    )
    running = launcher_of(surroundings.on)(plan)
    if isinstance(running, PlacedCluster):
        running.early_server = server
    # The environment's credentials belong to another cluster.
    with (
        running as cluster,
        Client(
            cluster.address, shared=root, credentials=cluster.credentials, follow=False
        ) as client,
    ):
        yield cluster, client


def train(
    asked: Spec, workers: int | None, surroundings: Surroundings, watching: Watching
) -> Result:
    """Train a spec with a number of workers; None: as many as fit the spec."""
    number = workers_for(asked, workers, is_here=surroundings.is_here)
    check_named(asked, surroundings.data_dir)
    # A fork server that starts before the spec is resolved, if a task's optimizer decides that.
    early: ForkServerProcess | None = None
    with ExitStack() as servers:

        def look(at: dict[str, Any]) -> str:
            """Let a fork look at the optimizer, see `trainer_of`."""
            nonlocal early
            # Refuse what can be refused before there is a folder.
            rounds, is_local = resolve(asked, number).rounds, surroundings.is_local
            surroundings.disturbances.check(number, rounds, is_local=is_local)
            imports = package_imports(asked)
            root = SharedDirectory.open(surroundings.shared, create=True).root
            early = fork_server(root, asked.threads, imports)
            servers.callback(early.close)
            early.request("look", "look", at)
            return early.answer_of("look", START_SECONDS)

        apart = surroundings.on != "inline"
        trainer = trainer_of(asked, number, apart=apart, ask=look)
        resolved = _resolved(asked, number, trainer, surroundings, watching)
        try:
            return _trained(resolved, number, surroundings, watching, early)
        except NotBegun as refused:
            shutil.rmtree(SharedDirectory(surroundings.shared).experiment_path(refused.experiment))
            raise


def _resolved(
    asked: Spec,
    number: int,
    trainer: LocalOptimizer | None,
    surroundings: Surroundings,
    watching: Watching,
) -> ResolvedSpec:
    """Resolve a spec, after what the machine and the shared directory decide or refuse."""
    if asked.inside.how == "auto" and surroundings.is_here:
        datasets = SharedDirectory.open(surroundings.shared, create=True).datasets
        asked = settled(asked, number, datasets, surroundings.data_dir, watching.note)
    resolved = resolve(asked, number, trainer=trainer)
    surroundings.disturbances.check(number, resolved.rounds, is_local=surroundings.is_local)
    if resolved.init_from is not None:
        start = start_of(resolved, experiments_at(surroundings.shared))
        resolved = resolved.replace(init_checksum=start.checksum)
    watching.on_resolved(resolved)
    return resolved


def _trained(
    resolved: ResolvedSpec,
    workers: int,
    surroundings: Surroundings,
    watching: Watching,
    server: ForkServerProcess | None,
) -> Result:
    resumed = resumed_by(resolved, surroundings.shared)
    with (
        watching.follower(resumed) as follower,
        watching.bars() as draw,
        embed(resolved, workers, surroundings, server) as (cluster, client),
        ExitStack() as disturbed,
    ):
        experiment = client.submit(resolved)
        record = partial(client.disturbed, experiment)
        disturbances = disturbing(surroundings.disturbances, cluster, record, watching.note)
        disturb = disturbed.enter_context(disturbances)
        # If someone killed the manager, it answers only after `check` has restarted it.
        lines = partial(client.record, check=cluster.check)

        named = resolved.device != AUTO

        def look(status: Status) -> None:
            nonlocal named
            disturb(status)
            if not named and status.devices:
                log.info("device = auto: %s", status.devices)
                named = True
            cluster.provide(status.wanted_workers, status.idle_workers)
            follower.follow(experiment, lines)
            follower.see(status)
            for show in (draw, watching.on_status):
                if show is not None:
                    show(status)

        try:
            return client.wait(experiment, on_status=look, check=cluster.check)
        except ExperimentFailed as failed:
            if cluster.log.stat().st_size:
                failed.reason += f"; see {cluster.log}"
            was_prepared = client.results(experiment).parameters > 0
            if was_prepared or failed.exit_status != SpecError.exit_status:
                raise
            raise NotBegun(experiment, failed.reason, asked_wrongly=True) from None
