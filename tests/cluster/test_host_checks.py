"""What is listed of a cluster that stays, and said of its hosts."""

from dataclasses import replace

from downpour.base.states import WorkerState
from downpour.base.values import AttemptId
from downpour.cluster.doctor import judge
from downpour.cluster.launchers.cluster_files import ClusterInfo, cluster_processes
from downpour.cluster.launchers.ssh_script import Host, Look
from downpour.files.store.lease import Leader
from downpour.network.rpc.messages import Status, WorkerStatus

FINE = Look(
    Host("n1", slots=2), numerics="torch 2 on cpu (avx2)", version="1", cores=4, memory_bytes=2**33
)


def test_hosts_that_are_alike_have_no_problem() -> None:
    """A clock may be off by as much as an answer takes."""
    reports = judge([FINE, replace(FINE, ahead_seconds=0.3)])
    assert [(one.verdict, one.problems) for one in reports] == [("ok", ())] * 2


def test_each_problem_is_one_line_of_its_own() -> None:
    """What slows down or changes bytes is a warning; what cannot be used is a failure."""
    odd = replace(
        FINE,
        host=Host("n2", slots=8),
        ahead_seconds=-7.0,
        numerics="torch 2 on cpu (avx512)",
        memory_bytes=2**30,
        cards=9,
    )
    away = Look(Host("n3"), "ssh: no route to host")
    fine, strange, lost = judge([FINE, FINE, odd, away])[1:]
    assert fine.verdict == "ok"
    assert strange.verdict == "warning"
    assert [problem.seen for problem in strange.problems] == [
        "its clock is 7.0 s behind",
        "torch 2 on cpu (avx512)",
        "8 slots on 4 cores",
        "9 accelerators, but slots=8",
        "8 slots with 1.0 GiB of memory free",
    ]
    assert "which have torch 2 on cpu (avx2)" in strange.problems[1].change
    assert lost.verdict == "failed"
    assert [problem.seen for problem in lost.problems] == ["ssh: no route to host"]


def test_a_host_without_torch_is_told_to_install_it() -> None:
    """Its numeric class is empty."""
    (report,) = judge([replace(FINE, numerics="")])
    assert [problem.seen for problem in report.problems] == ["it has no torch"]


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
