"""The processes that `downpour ps` lists, merged from several sources."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from downpour.cluster.launchers.cluster_files import ClusterInfo
from downpour.files.store.lease import Leader
from downpour.network.rpc.messages import Status


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
    cluster: ClusterInfo | None,
    leader: Leader | None,
    status: Status | None,
    *,
    is_kept: bool,
) -> Iterator[ClusterProcess]:
    """Yield the supervisor, the manager, and the workers.

    `cluster` is the supervisor's last description, if there is a supervisor; `is_kept` says whether
    that lives. `leader` leads in the shared directory, and `status` is its answer, if it gave one.
    """
    if cluster is not None:
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
        state="up" if status is not None else "does not answer",
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
            state = "starting" if status is not None else "unknown"
            yield ClusterProcess(role="worker", name=name, state=state)
