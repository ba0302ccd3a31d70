"""What users call from Python to train: `run`, with a manager and workers that end with the call.

It imports no torch; the processes that it starts do.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from downpour.base.arguments import checked_call
from downpour.base.errors import ExperimentFailed, NotBegun, SpecError
from downpour.base.values import DEFAULT_SHARED
from downpour.cluster.launchers import Launcher, LaunchPlan, RunningCluster, launcher_of
from downpour.cluster.launchers.launch_table import launch_of
from downpour.cluster.manager.options import (
    ManagerOptions,
    checked_patience,
)
from downpour.cluster.manager.start_file import start_of
from downpour.core.resolve import resolve
from downpour.core.spec import ResolvedSpec, Spec
from downpour.experiments.client import Asked, Client, OnStatus, spec_of
from downpour.experiments.pages.event_files import Follower
from downpour.experiments.reading import Result
from downpour.files.store import SharedDirectory
from downpour.files.store.named_model import experiments_at
from downpour.host.paths import path_of
from downpour.learning.intra_worker.choice import settled
from downpour.learning.tasks import check_named
from downpour.network.rpc.messages import Status

log = logging.getLogger(__name__)

_DIGITS = Spec()


@checked_call(Spec.model_fields)
def run(  # noqa: PLR0913 - by keyword, and few at a time
    spec: Asked = _DIGITS,
    *,
    workers: int | None = None,
    shared: str | os.PathLike[str] | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    patience: float = 1.0,
    on_status: OnStatus | None = None,
    progress: bool | None = None,
    tensorboard: str | os.PathLike[str] | None = None,
    on: Launcher | str | None = None,
) -> Result:
    """Train with a manager and workers that end with the call, on this machine by default.

    Args:
        spec: What to train: a spec, its fields by name, or the path of a TOML file; without one, a
            small network on scikit-learn's digits.
        workers: The number of worker processes; by default as many as shards, fewer on few cores.
        shared: The shared directory, made if it is missing; the results stay there. By default
            DOWNPOUR_SHARED, or else ./shared_dir.
        data_dir: A folder of datasets in torchvision's layout; by default DOWNPOUR_DATA.
        patience: Multiplies every timeout: of heartbeats, of progress and of missing files.
        on_status: Called with each new status, at most ten times a second.
        progress: Whether to draw bars, which needs a terminal or a notebook; by default they are
            drawn unless `on_status` is given.
        tensorboard: A folder for TensorBoard, in which event files are written during the run.
        on: What starts the workers: `"local"` (processes), `"inline"` (threads of this process, for
            a debugger), `"slurm"`, `"ray"`, `"ssh"`, `"compose"`, or any `Launcher` of
            `downpour.cluster.launchers`; by default what the file's table `[launch]` says, or
            `"local"`.

    Raises:
        SpecError: an argument or a field is invalid; names it and what is accepted.
        MissingPackage: `tensorboard` is given, and TensorBoard is not installed.
        ExperimentFailed: training ended without a model; says why.
        NotBegun: the same, where it was refused before it began, and nothing of it is kept.
        LaunchError: a process could not be started.
    """
    asked = spec_of(spec)
    if on is None and isinstance(spec, str | os.PathLike):
        table = launch_of(path_of("spec", spec))
        workers = table.workers if workers is None else workers
        on = table.launcher()
    on = "local" if on is None else on
    workers = workers_for(asked, workers)
    asked = inside_measured(asked, workers, shared=shared, data_dir=data_dir, on=on)
    return run_resolved(
        resolve(asked, workers),
        workers,
        shared=shared,
        data_dir=data_dir,
        patience=patience,
        on_status=on_status,
        progress=progress,
        tensorboard=tensorboard,
        on=on,
    )


def run_resolved(  # noqa: PLR0913 - those of `run`
    resolved: ResolvedSpec,
    workers: int,
    *,
    shared: str | os.PathLike[str] | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    patience: float = 1.0,
    on_status: OnStatus | None = None,
    progress: bool | None = None,
    tensorboard: str | os.PathLike[str] | None = None,
    on: Launcher | str = "local",
) -> Result:
    """Do what `run` does, for a caller that has resolved the spec itself, to show it first."""
    data_dir = data_dir or os.environ.get("DOWNPOUR_DATA")
    source_dir = path_of("data_dir", data_dir) if data_dir else None
    if on_status is not None and not callable(on_status):
        raise SpecError("on_status", on_status, "must be a function that takes a status")
    check_named(resolved, source_dir)
    if resolved.init_from is not None:
        start = start_of(resolved, experiments_at(shared_path(shared)))
        resolved = resolved.replace(init_checksum=start.checksum)
    embedded = embed(
        resolved, workers, shared=shared, data_dir=source_dir, patience=patience, on=on
    )
    wanted = on_status is None if progress is None else progress
    with (
        _nothing_left(shared_path(shared)),
        following(tensorboard) as follower,
        _shown(wanted=wanted) as draw,
        embedded as embedding,
    ):
        cluster, client = embedding
        experiment = client.submit(resolved)

        def look(status: Status) -> None:
            cluster.provide(status.wanted_workers, status.idle_workers)
            if follower is not None:
                follower.follow(experiment, client.record)
            for show in (draw, on_status):
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


@contextmanager
def _nothing_left(shared: Path) -> Iterator[None]:
    """Remove the folder of an experiment that was refused before it began, once all has ended."""
    try:
        yield
    except NotBegun as refused:
        shutil.rmtree(SharedDirectory(shared).experiment_path(refused.experiment))
        raise


def inside_measured(
    spec: Spec,
    workers: int,
    *,
    shared: str | os.PathLike[str] | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    on: Launcher | str = "local",
    tell: Callable[[str], object] = log.info,
) -> Spec:
    """Return a spec that says how a worker trains inside its machine, measured if it was open.

    Raises:
        SpecError: the workers run on other machines, or the training is refused.
    """
    if spec.inside.how != "auto" or on not in {"local", "inline"}:
        return spec
    source = data_dir or os.environ.get("DOWNPOUR_DATA")
    root = SharedDirectory.open(shared_path(shared), create=True)
    return settled(
        spec, workers, root.datasets, path_of("data_dir", source) if source else None, tell
    )


@contextmanager
def _shown(*, wanted: bool) -> Iterator[OnStatus | None]:
    """Draw bars on standard error, if wanted."""
    if not wanted:
        yield None
        return
    from downpour.experiments.tables.console import SafeConsole
    from downpour.experiments.tables.progress import ProgressDisplay

    with ProgressDisplay(SafeConsole(stderr=True)) as display:
        yield display.show


def following(
    tensorboard: str | os.PathLike[str] | None,
) -> AbstractContextManager[Follower | None]:
    """Return a writer of event files for a running experiment; None without a folder.

    Raises:
        MissingPackage: TensorBoard is not installed.
        SpecError: the folder cannot be written.
    """
    if tensorboard is None:
        return nullcontext()
    return Follower(path_of("tensorboard", tensorboard))


@contextmanager
def embed(
    spec: Spec,
    workers: int,
    *,
    shared: str | os.PathLike[str] | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    patience: float = 1.0,
    on: Launcher | str = "local",
) -> Iterator[tuple[RunningCluster, Client]]:
    """Run a manager, workers and a client of them until the block ends.

    They train any number of experiments, one after the other. The number of threads and the device
    are this spec's. The launcher `on` decides where they run: on this machine, by default.
    """
    patience = checked_patience(patience)
    root = SharedDirectory.open(shared_path(shared), create=True).root
    options = ManagerOptions(
        shared=str(root),
        port=0,
        data_dir=str(data_dir or os.environ.get("DOWNPOUR_DATA") or ""),
        patience=patience,
        embedded=True,
        run=secrets.token_hex(8),
    )
    plan = LaunchPlan(options, workers, threads=spec.threads, device=spec.device)
    # The credentials of the environment are another cluster's.
    with (
        launcher_of(on)(plan) as cluster,
        Client(
            cluster.address, shared=root, credentials=cluster.credentials, follow=False
        ) as client,
    ):
        yield cluster, client


def shared_path(shared: str | os.PathLike[str] | None) -> Path:
    """Return the shared directory that is meant: the given one, the environment's, or the default.

    Raises:
        SpecError: it is no path.
    """
    if shared is None:
        shared = os.environ.get("DOWNPOUR_SHARED") or DEFAULT_SHARED
    return path_of("shared", shared)


def workers_for(spec: Spec, workers: int | None = None) -> int:
    """Return how many workers `run` starts: `workers`, or a default that fits the spec.

    Raises:
        SpecError: `workers` is not a whole number of at least 1.
    """
    if workers is None:
        return _sensible_workers(spec)
    if not isinstance(workers, int) or isinstance(workers, bool) or workers < 1:
        raise SpecError("workers", workers, "must be a whole number, at least 1")
    return workers


def _sensible_workers(spec: Spec) -> int:
    """Return the number of shards, but at most one a core or four, and the standbys."""
    most = max(4, os.cpu_count() or 1)
    busy = min(spec.shards, most) if spec.shards is not None else most
    return busy + spec.standbys
