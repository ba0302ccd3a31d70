"""What users call from Python: `run` trains on this machine, `Client` calls a manager.

Neither imports torch; the processes that they start do.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import islice
from pathlib import Path
from typing import Any, Self, TypeVar

from downpour.credentials import Credentials
from downpour.discovery.managers import Managers
from downpour.discovery.waiting import CONNECT_SECONDS, awaiting, checked_seconds
from downpour.errors import ExperimentFailed, NotBegun, SpecError, Unreachable
from downpour.inside.choice import settled
from downpour.launchers import Launcher, LaunchPlan, RunningCluster, launcher_of
from downpour.launchers.table import launch_of
from downpour.manager.options import (
    DEFAULT_MANAGER,
    DEFAULT_SHARED,
    ManagerOptions,
    checked_patience,
)
from downpour.manager.start_file import start_of
from downpour.paths import path_of
from downpour.reports import Result
from downpour.reports.event_files import Follower
from downpour.resolve import resolve
from downpour.rpc import ManagerClient, Trust, parse_address
from downpour.rpc.messages import ExperimentSummary, RecordPage, Status
from downpour.spec import ResolvedSpec, Spec
from downpour.spec_file import read_spec
from downpour.store import SharedDirectory
from downpour.store.location import seen_location
from downpour.store.named_model import experiments_at
from downpour.tasks import check_named
from downpour.values import ExperimentState

log = logging.getLogger(__name__)

OnStatus = Callable[[Status], None]
Asked = Spec | Mapping[str, Any] | str | os.PathLike[str]
"""A spec, its fields by name, or the path of a TOML file with them."""
_Answer = TypeVar("_Answer")

_POLL_SECONDS = 1.0
_AWAY_SECONDS = 60.0
_LOOK_SECONDS = 0.1
"""Between two looks: changes come by the hundred, and a person sees ten a second at most."""


def run(  # noqa: PLR0913 - by keyword, and few at a time
    spec: Asked | None = None,
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
        spec: What to train: a spec, its fields by name, or the path of a TOML file; the defaults
            train a small network on scikit-learn's digits.
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
            `downpour.launchers`; by default what the file's table `[launch]` says, or `"local"`.

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


def spec_of(asked: Asked | None) -> Spec:
    """Return the spec that was given as one, as its fields, or as the path of a file.

    Raises:
        SpecError: it has another type, or a field is invalid.
    """
    match asked:
        case None:
            return Spec()
        case Spec():
            return asked
        case Mapping():
            return Spec.make(asked)
        case str() | os.PathLike():
            return read_spec(path_of("spec", asked))
    raise SpecError("spec", asked, "must be a Spec, its fields by name, or the path of a TOML file")


@contextmanager
def _shown(*, wanted: bool) -> Iterator[OnStatus | None]:
    """Draw bars on standard error, if wanted."""
    if not wanted:
        yield None
        return
    from rich.console import Console

    from downpour.reports.progress import ProgressDisplay

    with ProgressDisplay(Console(stderr=True)) as display:
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


class Client:
    """A client of a manager.

    Args:
        manager: The manager's address, `HOST:PORT`; by default DOWNPOUR_MANAGER, or else localhost.
        shared: The manager's shared directory, if this machine has it; results then name the files.
        credentials: A token or certificates; by default those of the environment
            (`DOWNPOUR_TOKEN` and others).
        connect_seconds: How long `submit` and `watch` wait for a manager that does not answer yet.
        follow: Whether to turn to the leading manager, which the shared directory names, if the
            one at the address does not answer.

    Raises:
        SpecError: the address is invalid, or a credential cannot be read.
    """

    def __init__(
        self,
        manager: str | None = None,
        *,
        shared: str | os.PathLike[str] | None = None,
        credentials: Credentials | None = None,
        connect_seconds: float = CONNECT_SECONDS,
        follow: bool = True,
    ) -> None:
        if manager is None:
            manager = os.environ.get("DOWNPOUR_MANAGER") or DEFAULT_MANAGER
        if not isinstance(manager, str):
            raise SpecError("manager", manager, "must be HOST:PORT, as text")
        address = parse_address(manager, field="manager")
        self._connect_seconds = checked_seconds("connect_seconds", connect_seconds)
        trust = Trust.load(credentials or Credentials.from_environment())
        seen = seen_location(shared) if shared is not None else None
        # In an object store there is no folder of an experiment that a result could name.
        self._shared = seen.root if seen is not None and seen.bucket is None else None
        self._managers = Managers(seen if follow else None, address, trust)
        self._manager = self._managers.first
        self._met = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._manager.close()

    def submit(self, spec: Asked, request: str = "") -> str:
        """Submit an experiment; returns its identifier at once.

        Takes a spec in the forms that `run` takes. Submitting the same `request` again, 4 to 32
        hexadecimal digits, returns the same experiment, whose identifier ends with it; by default
        the request is random.

        Raises:
            SpecError: the manager refuses the spec.
        """
        text, request = spec_of(spec).to_toml(), request or secrets.token_hex(4)
        return self._ask(lambda manager: manager.submit(text, request))

    def status(self, experiment: str = "") -> Status:
        """Return the current status of an experiment; by default of the active one."""
        return self._ask_now(lambda manager: manager.status(experiment, 0, 0.0))

    def watch(
        self, experiment: str = "", check: Callable[[], None] | None = None
    ) -> Iterator[Status]:
        """Yield the status of an experiment at each change, until the experiment has ended.

        By default it is the active experiment, or the next that becomes active. `check` is called
        between two looks and may raise to end the iteration. If the manager stops answering, this
        waits for it for a minute.
        """
        status = self._ask(lambda manager: manager.status(experiment, 0, 0.0), check)
        while True:
            yield status
            if status.experiment is not None:
                experiment = status.experiment.experiment
                if status.experiment.state.ended:
                    return
            if check is not None:
                check()
            time.sleep(_LOOK_SECONDS)
            status = self._ask(_next_status(experiment, status.change), check)

    def wait(
        self,
        experiment: str,
        *,
        on_status: OnStatus | None = None,
        check: Callable[[], None] | None = None,
    ) -> Result:
        """Wait for an experiment's end and return its result.

        Raises:
            ExperimentFailed: it failed, or a user cancelled it.
        """
        end: ExperimentSummary | None = None
        for status in self.watch(experiment, check):
            end = status.experiment
            if on_status is not None:
                on_status(status)
        if end is not None and end.state is not ExperimentState.FINISHED:
            reason = end.reason or f"it was {end.state}"
            raise ExperimentFailed(experiment, reason, asked_wrongly=end.asked_wrongly)
        return self.results(experiment)

    def results(self, experiment: str) -> Result:
        """Return the result of an experiment so far."""
        folder = SharedDirectory(self._shared).experiment_path(experiment) if self._shared else None
        seen = folder if folder is not None and folder.is_dir() else None
        return Result.from_lines(self.record(experiment), folder=seen)

    def record(self, experiment: str, from_line: int = 0) -> list[str]:
        """Return the lines of an experiment's record from one on, as the manager wrote them."""
        lines: list[str] = []
        ask = self._ask if self._met else self._ask_now
        while True:
            following = from_line + len(lines)
            page = ask(_page(experiment, following))
            if not page.lines:
                return lines
            lines += page.lines

    def cancel(self, experiment: str) -> None:
        """Stop an experiment; does nothing if it has ended."""
        self._ask_now(lambda manager: manager.cancel(experiment))

    def experiments(self, last: int | None = None) -> tuple[ExperimentSummary, ...]:
        """Return a summary of the manager's last experiments, by default of all, oldest first."""
        return tuple(islice(self.newest(), last))[::-1]

    def newest(self) -> Iterator[ExperimentSummary]:
        """Yield a summary of each experiment of the manager, the one submitted last first."""
        before = ""
        while page := self._ask_now(_experiments_before(before)):
            yield from reversed(page)
            before = page[0].experiment

    def _ask(
        self,
        question: Callable[[ManagerClient], _Answer],
        check: Callable[[], None] | None = None,
    ) -> _Answer:
        """Ask the manager, and wait for it if it does not answer."""
        seconds = _AWAY_SECONDS if self._met else self._connect_seconds
        answer: _Answer = awaiting(seconds, check or _nothing)(self._ask_now, question)
        self._met = True
        return answer

    def _ask_now(self, question: Callable[[ManagerClient], _Answer]) -> _Answer:
        """Ask the manager or, if it cannot be reached, the one that has taken over."""
        try:
            return question(self._manager)
        except Unreachable:
            former, another = self._manager, self._managers.another()
            if another is None:
                raise
            self._manager = another
            former.close()
            with suppress(Unreachable):
                return question(another)
            raise


def _next_status(experiment: str, after_change: int) -> Callable[[ManagerClient], Status]:
    return lambda manager: manager.status(experiment, after_change, _POLL_SECONDS)


def _experiments_before(
    before: str,
) -> Callable[[ManagerClient], tuple[ExperimentSummary, ...]]:
    return lambda manager: manager.list_experiments(before)


def _page(experiment: str, from_line: int) -> Callable[[ManagerClient], RecordPage]:
    return lambda manager: manager.results(experiment, from_line, 0.0)


def _nothing() -> None:
    """Check nothing between two tries."""


def _sensible_workers(spec: Spec) -> int:
    """Return the number of shards, but at most one a core or four, and the standbys."""
    most = max(4, os.cpu_count() or 1)
    busy = min(spec.shards, most) if spec.shards is not None else most
    return busy + spec.standbys
