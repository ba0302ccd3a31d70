"""Trains one spec to its end with its own manager and workers: `train`, and `run` for Python.

Nothing here imports torch; only the processes that it starts do.
"""

import logging
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from downpour.base.errors import ExperimentFailed, NotBegun, SpecError
from downpour.base.names import AUTO, checked_call
from downpour.cluster.disturbances import Disturbances
from downpour.cluster.launchers import (
    Launcher,
    LaunchPlan,
    RunningCluster,
    launch_of,
    launcher_of,
    refuse_unmet,
)
from downpour.cluster.launchers.cluster import START_SECONDS, PlacedCluster
from downpour.cluster.launchers.forkserver import ForkServerProcess, fork_server
from downpour.cluster.manager.start_file import start_of
from downpour.cluster.options import ManagerOptions
from downpour.core.resolve import LocalOptimizer, resolve, rounds_at_most
from downpour.core.spec import ResolvedSpec, Spec
from downpour.experiments.client import Asked, Client, OnStatus, spec_of
from downpour.experiments.following import OnEvent, OnRound, Watching, disturbing
from downpour.experiments.surroundings import Location, Surroundings, resumed_by, workers_for
from downpour.files.store import SharedDirectory
from downpour.files.store.model_files import experiments_at
from downpour.host.paths import path_of
from downpour.learning.auto import settled, trainer_of
from downpour.learning.tasks.agreement import check_named
from downpour.learning.user_code import package_imports
from downpour.network.rpc.messages import Status
from downpour.record import Result
from downpour.show.loggers import Logger

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
            rounds, is_local = rounds_at_most(resolve(asked, number)), surroundings.is_local
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
    rounds, is_local = rounds_at_most(resolved), surroundings.is_local
    surroundings.disturbances.check(number, rounds, is_local=is_local)
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


_DIGITS = Spec()


@checked_call(Spec.model_fields)
def run(  # noqa: PLR0913 - by keyword, and few at a time
    spec: Asked = _DIGITS,
    *,
    workers: int | None = None,
    shared: Location | None = None,
    data_dir: Location | None = None,
    patience: float = 1.0,
    on_status: OnStatus | None = None,
    on_round: OnRound | None = None,
    on_event: OnEvent | None = None,
    loggers: Sequence[Logger | str] = (),
    progress: bool | None = None,
    tensorboard: Location | None = None,
    on: Launcher | str | None = None,
    slow: Mapping[str, float | str] | None = None,
    kill: Sequence[str] = (),
) -> Result:
    """Train with a manager and workers that end with the call, on this machine by default.

    Args:
        spec: What to train: a spec, its fields by name, or the path of a TOML file; without one, a
            small network on scikit-learn's digits.
        workers: The number of worker processes; by default one per shard, but no more than this
            machine has cores.
        shared: The shared directory, which `run` makes if it is missing; the results stay there. By
            default DOWNPOUR_SHARED, or else ./shared_dir.
        data_dir: A folder of datasets in torchvision's layout; by default DOWNPOUR_DATA.
        patience: Multiplies every timeout: of heartbeats, of progress and of missing files.
        on_status: Called with each new status, at most ten times a second.
        on_round: Called with each evaluated epoch, a `RoundResult` with its metrics, losses,
            seconds and bytes. It runs in its own thread and delays no training. If it raises, the
            first error is logged and training continues.
        on_event: Called in the same way with each `ExperimentEvent`, such as "finished".
        loggers: Where to log epochs: texts as for `--log`, such as `"csv:log.csv"`, or `Logger`s.
        progress: Whether to draw bars, in a terminal or a notebook; by default, `run` draws them
            unless `on_status` is given.
        tensorboard: A folder for TensorBoard; `run` writes event files into it during the run.
        on: The launcher of workers: `"local"` (processes), `"inline"` (threads of this process, for
            a debugger), `"slurm"`, `"ray"`, `"ssh"`, `"compose"`, or any `Launcher` of
            `downpour.launchers`. By default, the one of the file's `[launch]`, or `"local"`.
        slow: Workers to slow down on purpose, by name: `{"worker-3": 0.25}` runs at a quarter of
            its speed, and `"0.25,pauses=6/10"` also stands still for 6 of each 10 seconds.
        kill: Processes to kill on purpose: `"worker-2@round3"` (rounds count from 1), or
            `"manager@20s"` after training began. A killed manager restarts; a worker stays away
            unless `,restart` follows.

    Raises:
        SpecError: an argument or a field is invalid; the message names it and the accepted values.
        MissingPackage: the library of `tensorboard` or of a logger is not installed.
        ExperimentFailed: training ended without a model; the message says why.
        NotBegun: the same, but Downpour refused the training before it began, and keeps nothing.
        LaunchError: a process could not be started.
    """
    asked = spec_of(spec)
    workers, on = _placed(spec, asked, workers, on)
    disturbances = Disturbances.of(slow, kill)
    place = Surroundings(shared, data_dir, patience, on, disturbances=disturbances)
    told = partial(Watching, on_status=on_status, on_round=on_round, on_event=on_event)
    watching = told(loggers=loggers, progress=progress, tensorboard=tensorboard)
    return train(asked, workers, place, watching)


def _placed(
    spec: Asked, asked: Spec, workers: int | None, on: Launcher | str | None
) -> tuple[int | None, Launcher | str | None]:
    """Return the workers and their launcher; a file may name both if the caller does not."""
    if on is None and isinstance(spec, str | os.PathLike):
        table = launch_of(path_of("spec", spec))
        launcher = table.launcher if table.options or any(table.settings.values()) else table.on
        table.check(asked)
        return table.workers if workers is None else workers, launcher
    if on is None or isinstance(on, str):
        refuse_unmet(asked, on or "local", {}, ())
    return workers, on
