"""What users call from Python: `run` trains here and now, `Client` speaks to a manager elsewhere.

Neither imports torch: the processes that train do.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, Self, TypeVar

from downpour import datasets
from downpour.credentials import Credentials
from downpour.discovery.managers import Managers
from downpour.discovery.waiting import CONNECT_SECONDS, awaiting, checked_seconds
from downpour.errors import ExperimentFailed, SpecError, Unreachable
from downpour.launchers import LocalCluster
from downpour.manager.options import (
    DEFAULT_MANAGER,
    DEFAULT_SHARED,
    ManagerOptions,
    checked_patience,
)
from downpour.paths import path_of
from downpour.reports import Result
from downpour.reports.event_files import Follower
from downpour.resolve import resolve
from downpour.rpc import ManagerClient, Trust, parse_address
from downpour.rpc.messages import ExperimentSummary, RecordPage, Status
from downpour.spec import ResolvedSpec, Spec
from downpour.spec_file import read_spec
from downpour.store import SharedDirectory
from downpour.values import ExperimentState

OnStatus = Callable[[Status], None]
Asked = Spec | Mapping[str, Any] | str | os.PathLike[str]
"""A spec, its fields by name, or the path of a TOML file that has them."""
_Answer = TypeVar("_Answer")

_POLL_SECONDS = 1.0
_AWAY_SECONDS = 60.0
_LOOK_SECONDS = 0.1
"""Between two looks: changes come by the hundred, and nobody sees more than ten a second."""


def run(
    spec: Asked | None = None,
    *,
    workers: int | None = None,
    shared: str | os.PathLike[str] | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    patience: float = 1.0,
    on_status: OnStatus | None = None,
    progress: bool | None = None,
    tensorboard: str | os.PathLike[str] | None = None,
) -> Result:
    """Train on this machine: a manager and worker processes that end with the call.

    Args:
        spec: What to train: a spec, its fields by name, or the path of a TOML file; the defaults
            train a small network on scikit-learn's digits.
        workers: Worker processes; as many as shards where absent, but no crowd on few cores.
        shared: The shared directory, made where it is missing; results stay there. Else what
            DOWNPOUR_SHARED says, else ./shared_dir.
        data_dir: A folder with datasets, laid out as torchvision does; else DOWNPOUR_DATA.
        patience: Scales how long silence, standstill and missing files are borne.
        on_status: Called with what goes on, several times a second at most.
        progress: Whether to draw bars, which needs a terminal or a notebook; where absent they are
            drawn unless `on_status` is given.
        tensorboard: A folder for TensorBoard, in which the run has event files that grow with it.

    Raises:
        SpecError: what was asked for cannot be; names the field and what is accepted.
        MissingPackage: event files are wanted, and TensorBoard is not installed.
        ExperimentFailed: training ended without a model, and why.
        LaunchError: a process could not be started.
    """
    asked = spec_of(spec)
    workers = workers_for(asked, workers)
    return run_resolved(
        resolve(asked, workers),
        workers,
        shared=shared,
        data_dir=data_dir,
        patience=patience,
        on_status=on_status,
        progress=progress,
        tensorboard=tensorboard,
    )


def run_resolved(
    resolved: ResolvedSpec,
    workers: int,
    *,
    shared: str | os.PathLike[str] | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    patience: float = 1.0,
    on_status: OnStatus | None = None,
    progress: bool | None = None,
    tensorboard: str | os.PathLike[str] | None = None,
) -> Result:
    """Do what `run` does, for a caller that has shown the resolved spec to its user before."""
    data_dir = data_dir or os.environ.get("DOWNPOUR_DATA")
    source_dir = path_of("data_dir", data_dir) if data_dir else None
    if on_status is not None and not callable(on_status):
        raise SpecError("on_status", on_status, "must be a function that takes a status")
    datasets.check_source(resolved, source_dir)
    embedded = embed(resolved, workers, shared=shared, data_dir=source_dir, patience=patience)
    wanted = on_status is None if progress is None else progress
    with following(tensorboard) as follower, _shown(wanted=wanted) as draw, embedded as embedding:
        cluster, client = embedding
        experiment = client.submit(resolved)

        def look(status: Status) -> None:
            cluster.provide(status.wanted_workers)
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
            raise


def spec_of(asked: Asked | None) -> Spec:
    """Return the spec that was given in one of the ways in which one may be.

    Raises:
        SpecError: it is none, or its fields do not fit.
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
    """Draw bars on standard error, where they are wanted."""
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
    """Write event files for TensorBoard while an experiment runs, where a folder is named.

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
) -> Iterator[tuple[LocalCluster, Client]]:
    """Run a manager and workers on this machine, and a client of theirs, that end with the block.

    They train any number of experiments, one after the other, with the threads and on the device
    of this spec.
    """
    patience = checked_patience(patience)
    if shared is None:
        shared = os.environ.get("DOWNPOUR_SHARED") or DEFAULT_SHARED
    root = SharedDirectory.open(path_of("shared", shared), create=True).root
    options = ManagerOptions(
        shared=str(root),
        port=0,
        data_dir=str(data_dir or os.environ.get("DOWNPOUR_DATA") or ""),
        patience=patience,
        embedded=True,
    )
    nothing = Credentials()  # on loopback nothing is asked, whatever the environment has
    with (
        LocalCluster(options, workers, threads=spec.threads, device=spec.device) as cluster,
        Client(cluster.address, shared=root, credentials=nothing, follow=False) as client,
    ):
        yield cluster, client


def workers_for(spec: Spec, workers: int | None = None) -> int:
    """Return how many workers `run` starts: those asked for, else as many as seem sensible.

    Raises:
        SpecError: there is no such number of workers.
    """
    if workers is None:
        return _sensible_workers(spec)
    if not isinstance(workers, int) or isinstance(workers, bool) or workers < 1:
        raise SpecError("workers", workers, "must be a whole number, at least 1")
    return workers


class Client:
    """A manager that runs somewhere, as seen from outside.

    Args:
        manager: Its address, `HOST:PORT`; else what DOWNPOUR_MANAGER says, else localhost.
        shared: Its shared directory where this machine sees it too; results then name the files.
        credentials: What it asks for; else what the environment has (`DOWNPOUR_TOKEN` and others).
        connect_seconds: How long `submit` and `watch` wait for a manager that is not there yet.
        follow: Whether to turn to the leading manager, as the shared directory names it, where
            the one at the address does not answer.

    Raises:
        SpecError: the address is none, or a credential cannot be read.
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
        self._connect_seconds = checked_seconds(connect_seconds)
        trust = Trust.load(credentials or Credentials.from_environment())
        self._shared = path_of("shared", shared) if shared is not None else None
        folder = SharedDirectory(self._shared) if self._shared is not None and follow else None
        self._managers = Managers(folder, address, trust)
        self._manager = self._managers.first
        self._met = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connections."""
        self._manager.close()

    def submit(self, spec: Asked, request: str = "") -> str:
        """Hand an experiment in; returns its identifier at once.

        The spec may be given in any way in which `run` takes it.

        The same `request`, 4 to 32 hexadecimal digits, leads to the same experiment, which its
        identifier ends with; one is made up where absent.

        Raises:
            SpecError: the manager sees that it cannot be.
        """
        text, request = spec_of(spec).to_toml(), request or secrets.token_hex(4)
        return self._ask(lambda manager: manager.submit(text, request))

    def status(self, experiment: str = "") -> Status:
        """Say what goes on now; without an identifier, with the active experiment."""
        return self._ask_now(lambda manager: manager.status(experiment, 0, 0.0))

    def watch(
        self, experiment: str = "", check: Callable[[], None] | None = None
    ) -> Iterator[Status]:
        """Yield what goes on, again at each change, until the experiment has ended.

        Without an identifier it is the active one, or the next to become active. `check` is called
        between two looks and may raise to end the watching. A manager that does not answer for a
        while is waited for.
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
            ExperimentFailed: it failed, or somebody cancelled it.
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
        """Return what is known of an experiment so far."""
        folder = SharedDirectory(self._shared).experiment_path(experiment) if self._shared else None
        seen = folder if folder is not None and folder.is_dir() else None
        return Result.from_lines(self.record(experiment), folder=seen)

    def record(self, experiment: str, from_line: int = 0) -> list[str]:
        """Return the lines of an experiment's record so far, as the manager wrote them."""
        lines: list[str] = []
        ask = self._ask if self._met else self._ask_now
        while True:
            following = from_line + len(lines)
            page = ask(_page(experiment, following))
            if not page.lines:
                return lines
            lines += page.lines

    def cancel(self, experiment: str) -> None:
        """Stop an experiment; one that has ended stays as it is."""
        self._ask_now(lambda manager: manager.cancel(experiment))

    def experiments(self) -> tuple[ExperimentSummary, ...]:
        """Name every experiment of the manager, oldest first."""
        return self._ask_now(lambda manager: manager.list_experiments())

    def _ask(
        self,
        question: Callable[[ManagerClient], _Answer],
        check: Callable[[], None] | None = None,
    ) -> _Answer:
        """Ask the manager; one that is away, or not there yet, is waited for."""
        seconds = _AWAY_SECONDS if self._met else self._connect_seconds
        answer: _Answer = awaiting(seconds, check or _nothing)(self._ask_now, question)
        self._met = True
        return answer

    def _ask_now(self, question: Callable[[ManagerClient], _Answer]) -> _Answer:
        """Ask the manager, or where it cannot be reached, the one that leads by now."""
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


def _page(experiment: str, from_line: int) -> Callable[[ManagerClient], RecordPage]:
    return lambda manager: manager.results(experiment, from_line, 0.0)


def _nothing() -> None:
    """Look at nothing between two tries."""


def _sensible_workers(spec: Spec) -> int:
    """As many as shards and standbys, but at most four, or one a core where there are more."""
    most = max(4, os.cpu_count() or 1)
    busy = min(spec.shards, most) if spec.shards is not None else most
    return busy + spec.standbys
