"""Files of a running cluster in the shared directory, so that any machine can look after it.

`cluster.json` describes the cluster as its supervisor last saw it. The supervisor holds
`cluster.lock` for as long as it lives, and the operating system frees that lock. `cluster.stop`
asks the supervisor to end the cluster. All of them are small JSON files, so users can look at a
cluster or stop it without reaching any of its processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from filelock import Timeout
from pydantic import TypeAdapter, ValidationError

from downpour.base.errors import LaunchError, SharedDirectoryError
from downpour.host.paths import FolderLock, is_held

if TYPE_CHECKING:
    from downpour.files.store.lease import Leader
    from downpour.network.rpc.messages import Status

FORMAT = 1
DESCRIPTION, STOP, _LOCK = "cluster.json", "cluster.stop", "cluster.lock"
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInfo:
    """A cluster that keeps running: its supervisor, and its parts.

    `on` is the launcher's name. Its supervisor is the process `pid` of the machine `hostname`.
    `workers` are the names of the wanted workers, and `registered` the names that the manager knows
    by now, with their `devices`. `token_file` may be relative to the directory, and is empty if
    calls need no token. `trouble` gives the reason for a restart, or for waiting with it.
    """

    format: int = FORMAT
    on: str
    hostname: str
    pid: int
    state: Literal["starting", "up", "waiting", "stopping"] = "starting"
    workers: tuple[str, ...] = ()
    registered: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    manager: str = ""
    token_file: str = ""
    log: str = ""
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequest:
    """A request to end a cluster; its workers may take `drain_seconds` to finish their tasks."""

    format: int = FORMAT
    drain_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ClusterFiles:
    """The files of a cluster that keeps running, in the shared directory `root`."""

    root: Path

    def read(self) -> ClusterInfo | None:
        """Return what the supervisor last wrote, even if it has died; None without a cluster."""
        return self._read(DESCRIPTION, ClusterInfo)

    def stop_request(self) -> StopRequest | None:
        """Return the request to end the cluster, if there is one."""
        return self._read(STOP, StopRequest)

    def clear(self) -> None:
        """Remove the files of an ended cluster."""
        for name in (DESCRIPTION, STOP):
            with suppress(FileNotFoundError, NotADirectoryError):  # the latter: root is a file
                (self.root / name).unlink()

    def inside(self, path: str) -> str:
        """Return a path relative to the directory, which other machines may have elsewhere."""
        if path and Path(path).is_relative_to(self.root):
            return str(Path(path).relative_to(self.root))
        return path

    def is_kept(self) -> bool:
        """Whether a supervisor lives, here or on another machine."""
        return is_held(self.root / _LOCK, self.root / DESCRIPTION)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Hold the supervisor's lock; remove an earlier one's files now, its own at the end."""
        lock = FolderLock(self.root / _LOCK)
        try:
            lock.acquire_soon()
        except Timeout:
            raise LaunchError(self.taken(), asked_wrongly=True) from None
        with lock:
            self.clear()
            try:
                yield
            finally:
                self.clear()

    def taken(self) -> str:
        """Return the message that a cluster is running already."""
        cluster = None
        with suppress(SharedDirectoryError):
            cluster = self.read()
        supervisor = f" (process {cluster.pid} of {cluster.hostname} keeps it)" if cluster else ""
        return f"a cluster is already up in {self.root}{supervisor}; `downpour down` stops it"

    def write(self, value: ClusterInfo | StopRequest) -> None:
        """Replace the description, or a request to end; a reader sees the former one or this."""
        from downpour.files.store.publish import TEMPORARY_PREFIX, writing

        name = STOP if isinstance(value, StopRequest) else DESCRIPTION
        new = self.root / f"{TEMPORARY_PREFIX}{name}"
        with writing(self.root, name):
            new.write_bytes(TypeAdapter(type(value)).dump_json(value, indent=2) + b"\n")
            new.replace(self.root / name)

    def _read(self, name: str, kind: type[_Value]) -> _Value | None:
        from downpour.files.store.directory import read_regular

        if not (self.root / name).exists():
            return None
        try:
            value = TypeAdapter(kind).validate_json(read_regular(self.root / name))
        except ValidationError:
            value = None
        if value is None or getattr(value, "format", 0) != FORMAT:
            reason = f"cannot understand {name}; another version of downpour may have written it"
            raise SharedDirectoryError(self.root, reason)
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterProcess:
    """A process; if it is missing, `hostname` is empty and `pid` is 0."""

    role: str
    name: str = ""
    hostname: str = ""
    pid: int = 0
    state: str
    attempt: str = ""
    labels: tuple[str, ...] = ()


def cluster_processes(
    cluster: ClusterInfo | None, leader: Leader | None, status: Status | None, *, is_kept: bool
) -> Iterator[ClusterProcess]:
    """Yield the supervisor, the manager, and the workers.

    `cluster` is the supervisor's last description, if there is a supervisor; `is_kept` says whether
    that lives. `leader` leads in the shared directory, and `status` is its answer, if it gave one.
    """
    silent, missing = "does not answer", "unknown"
    if cluster is not None:
        if is_kept and cluster.state == "waiting":
            leader, silent, missing = None, "stopped", "stopped"
        yield ClusterProcess(
            role="supervisor",
            hostname=cluster.hostname,
            pid=cluster.pid,
            state=cluster.state if is_kept else "dead",
        )
    yield ClusterProcess(
        role="manager",
        name=leader.addresses[0] if leader and leader.addresses else "",
        hostname=leader.hostname if leader else "",
        pid=leader.pid if leader else 0,
        state="up" if status is not None else silent,
    )
    seen = {worker.worker: worker for worker in (status.workers if status is not None else ())}
    for name, worker in seen.items():
        yield ClusterProcess(
            role="worker",
            name=name,
            hostname=worker.hostname,
            pid=worker.pid,
            state=worker.state,
            attempt=str(worker.running or ""),
            labels=worker.labels,
        )
    for name in cluster.workers if cluster is not None else ():
        if name not in seen:
            state = "starting" if status is not None else missing
            yield ClusterProcess(role="worker", name=name, state=state)
