"""What is listed of a cluster that stays."""

from __future__ import annotations

from downpour.base.states import WorkerState
from downpour.base.values import AttemptId
from downpour.cluster.launchers.cluster_files import ClusterInfo, cluster_processes
from downpour.files.store.lease import Leader
from downpour.network.rpc.messages import Status, WorkerStatus

CLUSTER = ClusterInfo(on="ssh", hostname="n0", pid=7, state="up", workers=("worker-1", "worker-2"))
LEADER = Leader(term=1, addresses=("10.0.0.1:4000",), hostname="n0", pid=8)
WORKER = WorkerStatus(
    worker="worker-1",
    address="10.0.0.2:1",
    state=WorkerState.BUSY,
    tasks_done=3,
    running=AttemptId(experiment="e", round=1, shard=2, attempt=0),
    hostname="n1",
    pid=9,
)


def test_the_keeper_the_manager_and_each_worker_have_a_row() -> None:
    """A worker that is wanted and not there is one too."""
    status = Status(change=1, workers=(WORKER,))
    rows = list(cluster_processes(CLUSTER, LEADER, status, is_kept=True))
    assert [(row.role, row.name, row.hostname, row.pid, row.state) for row in rows] == [
        ("supervisor", "", "n0", 7, "up"),
        ("manager", "10.0.0.1:4000", "n0", 8, "up"),
        ("worker", "worker-1", "n1", 9, "busy"),
        ("worker", "worker-2", "", 0, "starting"),
    ]
    assert rows[2].attempt == "round 1 shard 2 attempt 0"


def test_a_cluster_that_was_killed_says_so() -> None:
    """Its manager does not answer, so nobody knows of its workers."""
    rows = list(cluster_processes(CLUSTER, None, None, is_kept=False))
    assert [row.state for row in rows] == ["dead", "does not answer", "unknown", "unknown"]


def test_without_a_keeper_there_are_still_a_manager_and_its_workers() -> None:
    """They may have been started by hand, or by systemd."""
    rows = list(cluster_processes(None, LEADER, Status(change=1, workers=(WORKER,)), is_kept=False))
    assert [row.role for row in rows] == ["manager", "worker"]
