"""Finds the manager that a command calls, and the experiment that the user means.

`downpour ping` only says whether a manager or a worker answers, for people and for health checks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from downpour.base.errors import SpecError, StoreError, Unreachable
from downpour.base.names import whole_id
from downpour.base.options import argument, flag
from downpour.cli import common
from downpour.cli.common import SHARED, command
from downpour.cli.printing import note, say
from downpour.host.paths import Credentials, is_object_store

if TYPE_CHECKING:
    from downpour.experiments.client import Client
    from downpour.network.rpc.messages import ExperimentSummary
    from downpour.record import Result
    from downpour.record.record_lines import RecordLine

    Record = Sequence[tuple[float, RecordLine]]


def stored(
    shared: Path | str, silent: Unreachable, most: int | None, experiment: str = ""
) -> tuple[ExperimentSummary, ...] | None:
    """List the last experiments in a directory, and tell the user which manager is silent.

    If an `experiment` is given, list only that one. None: it is no shared directory.
    """
    from downpour.files.store.shared_directory import seen_location
    from downpour.record.stored_experiments import experiments_in, stored_records

    with stored_records(seen_location(shared), last=most) as folder:
        if not folder.is_dir():
            return None
        summaries = experiments_in(folder, None if experiment else most)
    whole = experiment and whole_id(experiment, (each.experiment for each in summaries))
    experiments = tuple(each for each in summaries if whole in {"", each.experiment})
    if experiments:
        note(f"{silent.address} does not answer; {shared} holds:")
    return experiments


@contextmanager
def client_of(
    manager: str,
    credentials: Credentials,
    shared: Path | str | None = None,
    connect_seconds: float = 0.0,
) -> Iterator[Client]:
    """Make a client of the manager that the user means (`network/discovery.py`).

    If none answers, the error says how to start or name one, unless the user gave its address.
    """
    from downpour.experiments.client import Client

    try:
        with Client(
            manager or None, shared=shared, credentials=credentials, connect_seconds=connect_seconds
        ) as client:
            yield client
    except Unreachable as error:
        if manager:
            raise
        where = f" --shared {shared}" if shared else ""
        named = "--manager" if shared else "--manager or --shared"
        hint = f"start one with `downpour manager{where}`, or name one with {named}"
        if shared and not is_object_store(shared) and not Path(shared).exists():
            hint = f"there is no such folder; {hint}"
        raise Unreachable(error.address, f"{error.reason}; {hint}") from error


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """An experiment's full ID, and its folder if this machine has it, or else its record."""

    experiment: str
    folder: Path | None
    fetched: Record = ()

    @property
    def record(self) -> Record:
        """The lines of its record."""
        from downpour.files.store.layout import RECORD_NAME
        from downpour.record.record import read_record

        return read_record(self.folder / RECORD_NAME) if self.folder else self.fetched

    def result(self, *, with_tasks: bool) -> Result:
        """Return its result, which needs less memory than its record."""
        from downpour.record.result import Result, rounds_in

        if self.folder is None:
            return Result.from_record(self.fetched)
        return Result.read(self.folder) if with_tasks else rounds_in(self.folder)


def find(
    experiment: str, shared: Path | str | None, manager: str, credentials: Credentials
) -> FoundRecord:
    """Return an experiment's record; the beginning of an ID is enough if it is unique."""
    from downpour.files.store import SharedDirectory
    from downpour.files.store.layout import RECORD_NAME
    from downpour.files.store.shared_directory import seen_location
    from downpour.record.mirror import recorded_in
    from downpour.record.record import parse_lines, read_record
    from downpour.record.stored_experiments import stored_records

    try:
        here = None if isinstance(shared, str) else shared or SHARED
        directory = SharedDirectory(here or SHARED)
        folder = directory.experiment_path(directory.whole_id(experiment) if here else experiment)
    except StoreError:
        raise SpecError("ID", experiment, "must be one that `downpour list` prints") from None
    if here is not None and folder.is_dir():
        return FoundRecord(folder.name, folder)
    try:
        with client_of(manager, credentials, shared) as client:
            now = client.status(experiment).experiment
            whole = now.experiment if now is not None else experiment
            return FoundRecord(whole, None, parse_lines(client.record(whole)))
    except Unreachable as error:
        if isinstance(shared, str):
            place = seen_location(shared)
            whole = whole_id(experiment, recorded_in(place))
            with stored_records(place, experiment=whole) as copies:
                if (copied := copies / whole).is_dir():
                    return FoundRecord(whole, None, read_record(copied / RECORD_NAME))
        accepted = f"not in {shared or SHARED}, and {error}"
        if not manager and here is not None and directory.experiments.is_dir():
            accepted = f"no such experiment in {here}; `downpour list` shows all"
        raise SpecError("ID", experiment, accepted) from None


_TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _PingOptions:
    address: str = argument(
        "The address to call.",
        "HOST:PORT",
        "",
        variable="DOWNPOUR_MANAGER",
        default="that of the leader in the shared directory",
    )
    shared: Path | str | None = common.shared_if_seen()
    worker: bool = flag("Call a worker, not a manager.")


@command
def ping(options: _PingOptions, credentials: Credentials) -> None:
    """Check whether a manager, or a worker, answers.

    Prints who answers. Without an answer, it prints the reason in one line and exits with a status
    other than 0.
    """
    from downpour.network.discovery import managers_for
    from downpour.network.rpc import Trust, WorkerClient, parse_address

    trust = Trust.load(credentials)
    address = options.address
    if options.worker:
        if not address:
            raise SpecError("HOST:PORT", address, "must be the worker's address with --worker")
        where = parse_address(address)
        with WorkerClient(where, trust=trust, timeout_seconds=_TIMEOUT_SECONDS) as client:
            info = client.ping()
            doing = f", training {info.running}" if info.running else ""
            line = f"worker {info.name} at {where}, downpour {info.version}{doing}"
    else:
        managers = managers_for(address, options.shared, trust, timeout_seconds=_TIMEOUT_SECONDS)
        with managers.first() as manager:
            managers.check(manager)
            line = f"manager at {manager.address}, downpour {manager.describe().version}"
    say(line)
