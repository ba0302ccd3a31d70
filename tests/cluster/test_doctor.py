"""Checks of this machine, and of hosts by ssh."""

import errno
import importlib.abc
import os
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import cast

import pytest

from downpour.base.states import WorkerState
from downpour.base.values import AttemptId
from downpour.cluster import doctor, probes
from downpour.cluster.doctor import DeviceCheck, diagnose, is_healthy, judge
from downpour.cluster.launchers.cluster_files import ClusterInfo, cluster_processes
from downpour.cluster.launchers.ssh_script import Host, Look
from downpour.cluster.manager.process import start_manager
from downpour.cluster.options import ManagerOptions
from downpour.cluster.probes import Attempts, Finding, Verdict, good
from downpour.files.store.directory import Mount
from downpour.files.store.lease import Leader
from downpour.network.rpc import Address, ManagerClient
from downpour.network.rpc.messages import Status, WorkerStatus

_OF_THE_FOLDER = (
    "folder",
    "file system",
    "publishing",
    "fsync",
    "locks",
    "space",
    "clock",
    "speed",
)
CHECKS = [*_OF_THE_FOLDER, "devices", "thrift", "manager", "same folder"]


@pytest.fixture(scope="module")
def managed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, ManagerClient]]:
    """A manager's shared directory, and the manager."""
    shared = tmp_path_factory.mktemp("shared")
    manager = start_manager(ManagerOptions(shared=str(shared), port=0))
    with ManagerClient(manager.address) as client:
        yield shared, client
    manager.close()


def test_the_managers_folder_passes_every_check(managed: tuple[Path, ManagerClient]) -> None:
    """All are made, in order, and nothing stays behind."""
    shared, manager = managed
    before = sorted(shared.rglob("*"))
    findings = diagnose(shared, manager)
    assert list(findings) == [*CHECKS[:-1], "accelerators", CHECKS[-1]]
    assert {finding.verdict for finding in findings.values()} == {Verdict.GOOD}
    assert is_healthy(findings)
    assert sorted(shared.rglob("*")) == before


def test_memory_in_small_pages_is_told_how_it_gets_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It works as it is, and the line can be typed; with huge pages there is nothing to say."""
    for options, advised in (((), True), (("huge=within_size",), False)):
        memory = Mount(point=Path("/dev/shm"), kind="tmpfs", options=options)  # noqa: S108
        monkeypatch.setattr(doctor, "find_mount", lambda _, found=memory: found)
        monkeypatch.setattr(doctor, "_HUGE_PAGES", tmp_path)
        found = diagnose(tmp_path, None)["file system"]
        assert found.verdict is Verdict.GOOD
        assert ("mount -o remount,huge=within_size /dev/shm" in found.seen) is advised


def test_idle_accelerators_are_a_warning() -> None:
    """A worker may be left out on purpose."""
    state = WorkerState.IDLE
    one = WorkerStatus(worker="w", address="", state=state, tasks_done=0, device="cpu", cards=2)
    manager = SimpleNamespace(status=lambda: Status(change=1, workers=(one,)))
    found = doctor._accelerators(cast("ManagerClient", manager))
    assert (found.verdict, found.seen[:19]) == (Verdict.WARNING, "2 of 2 accelerators")


def test_another_folder_is_found_out(managed: tuple[Path, ManagerClient], tmp_path: Path) -> None:
    """That folder is well in itself, but it is not the manager's."""
    findings = diagnose(tmp_path, managed[1])
    assert [name for name in CHECKS if findings[name].verdict is not Verdict.GOOD] == [
        "same folder"
    ]
    assert "sees another folder" in findings["same folder"].seen
    assert not is_healthy(findings)


def test_skipped_checks_are_not_called_good(tmp_path: Path) -> None:
    """Without a folder nothing can be tried in it, without a manager nothing compared."""
    missing = diagnose(tmp_path / "missing", None)
    assert missing["folder"].verdict is Verdict.FAILED
    of_folder = [name for name in CHECKS[1:] if name not in {"devices", "thrift"}]
    assert {missing[name].verdict for name in of_folder} == {Verdict.UNKNOWN}
    assert missing["devices"].seen.startswith("cpu")
    assert not (tmp_path / "missing").exists()
    alone = diagnose(tmp_path, None)
    assert {alone[name].verdict for name in CHECKS[-2:]} == {Verdict.UNKNOWN}
    assert is_healthy(alone)


def test_a_file_in_the_folders_place_is_none(tmp_path: Path) -> None:
    """The row says so."""
    (tmp_path / "file").write_bytes(b"")
    assert "not a folder" in diagnose(tmp_path / "file", None)["folder"].seen


@pytest.mark.parametrize(
    ("number", "seen", "change"),
    [
        (errno.EACCES, "not writable", f"let user {os.geteuid()} write there"),
        (errno.ENOSPC, "full", "make room"),
    ],
)
def test_a_folder_that_cannot_be_written_is_told_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, seen: str, change: str
) -> None:
    """The row says why, and what to change."""

    def fails(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "mkdir", fails)
    found = diagnose(tmp_path, None)["folder"]
    assert seen in found.seen
    assert found.change == change


def test_a_manager_that_is_not_there_is_a_row(tmp_path: Path) -> None:
    """The folder's own checks are made all the same."""
    with ManagerClient(Address("127.0.0.1", 1)) as nobody:
        findings = diagnose(tmp_path, nobody)
    assert "cannot be reached" in findings["manager"].seen
    assert findings["same folder"].verdict is Verdict.UNKNOWN
    assert findings["speed"].verdict is Verdict.GOOD


def test_another_protocol_must_be_mended_and_another_version_may_be(
    managed: tuple[Path, ManagerClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both sides' numbers are told."""
    with monkeypatch.context() as patch:
        patch.setattr(doctor, "VERSION", "0.0.1")
        assert diagnose(*managed)["manager"].verdict is Verdict.WARNING
    monkeypatch.setattr(doctor, "PROTOCOL", 99)
    found = diagnose(*managed)["manager"]
    assert (found.verdict, found.change) == (Verdict.FAILED, "install the same version on both")
    assert "protocol 99" in found.seen


def test_a_full_disk_is_told_in_every_row_it_spoils(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check that cannot be made has failed, and no error escapes."""

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    findings = diagnose(tmp_path, None)
    failed = {name: found for name, found in findings.items() if found.verdict is Verdict.FAILED}
    assert set(failed) == {"publishing", "fsync", "clock", "speed"}
    assert {found.change for found in failed.values()} == {"make room"}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("check", CHECKS)
def test_nothing_stays_behind_after_an_interruption(tmp_path: Path, check: str) -> None:
    """Whichever check Ctrl-C comes in."""

    def interrupt(begun: str) -> None:
        if begun == check:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        diagnose(tmp_path, None, interrupt)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_does_not_answer_is_told_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What hangs has failed, and what would hang is not tried; no file server is blamed."""
    answers = Event()

    def hangs(_: Path) -> Finding:
        answers.wait()
        return good("late")

    monkeypatch.setattr(doctor, "_PROBES", {**doctor._PROBES, "locks": hangs})
    monkeypatch.setattr(probes, "_GRACE_SECONDS", 0.0)
    findings = diagnose(tmp_path, None, limit_seconds=0.2)
    told = "no answer for 0.2 s", "check the disk or file server that has the folder"
    assert findings["locks"] == probes.bad(*told)
    assert findings["fsync"].verdict is Verdict.GOOD
    assert {findings[name].verdict for name in ("space", "clock", "speed")} == {Verdict.UNKNOWN}
    answers.set()


class SlowTorch(importlib.abc.MetaPathFinder):
    """Lets an import of torch wait, as on a machine whose disk is slow."""

    def __init__(self) -> None:
        self.may_go_on = Event()

    def find_spec(self, name: str, *_: object) -> None:
        if name == "torch":
            self.may_go_on.wait()
            raise ImportError(name)


@pytest.mark.slow
def test_a_slow_import_of_torch_is_not_blamed_on_the_file_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a warning in its own words, and the checks after it are made."""
    slow = SlowTorch()
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(sys, "meta_path", [slow, *sys.meta_path])
    devices = DeviceCheck()
    finding = Attempts(0.05, devices.late).make(devices.look)
    assert (finding.verdict, finding.seen) == (
        Verdict.WARNING,
        "torch could not be imported within 0.05 s",
    )
    monkeypatch.setattr(
        doctor,
        "DeviceCheck",
        lambda: SimpleNamespace(
            look=lambda: slow.may_go_on.wait() and good("late"), late=devices.late
        ),
    )
    findings = diagnose(tmp_path, None, limit_seconds=2.0)
    assert findings["devices"] == devices.late(2.0)
    assert findings["same folder"].seen == "only the manager can tell"
    assert is_healthy(findings)
    monkeypatch.undo()
    slow.may_go_on.set()


def test_an_accelerator_that_does_not_answer_is_named() -> None:
    """Torch is there by then, so its import is not to blame."""
    devices = DeviceCheck()
    devices._computing_on = "cuda:1"
    finding = devices.late(20.0)
    assert (finding.verdict, finding.seen) == (Verdict.FAILED, "cuda:1 has not answered for 20 s")


def test_a_torch_that_cannot_be_imported_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no fault of the folder's, and no traceback."""
    monkeypatch.setitem(sys.modules, "torch", None)
    finding = DeviceCheck().look()
    assert finding.verdict is Verdict.FAILED
    assert finding.seen.startswith("torch cannot be imported: ")


def test_an_interruption_waits_for_the_running_probe_before_it_cleans_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check that still writes would bring back what was removed."""
    interrupted = Event()

    def writes_on(folder: Path) -> Finding:
        interrupted.wait(10)
        (folder / "late").write_bytes(b"x")
        return good("done")

    class Impatient(Future[Finding]):
        def result(self, timeout: float | None = None) -> Finding:
            if begun[-1] == "locks":
                interrupted.set()
                raise KeyboardInterrupt
            return super().result(timeout)

    begun: list[str] = []
    monkeypatch.setattr(doctor, "_PROBES", {**doctor._PROBES, "locks": writes_on})
    monkeypatch.setattr(probes, "Future", Impatient)
    with pytest.raises(KeyboardInterrupt):
        diagnose(tmp_path, None, begun.append)
    assert list(tmp_path.iterdir()) == []


def test_a_defect_of_a_check_is_not_taken_for_a_slow_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It surfaces as what it is, at once."""

    def broken(_: Path) -> Finding:
        raise ZeroDivisionError

    monkeypatch.setattr(doctor, "_PROBES", {"broken": broken})
    with pytest.raises(ZeroDivisionError):
        diagnose(tmp_path, None)
    assert list(tmp_path.iterdir()) == []


def test_an_object_store_is_checked_as_well_as_the_folder_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing stays in it, and what is wrong with it is one finding."""
    from obstore.store import MemoryStore

    from downpour.files.store.bucket import Bucket

    objects = MemoryStore()
    monkeypatch.setenv("DOWNPOUR_LOCAL", str(tmp_path / "deep" / "mistyped"))
    monkeypatch.setattr(Bucket, "at", lambda url: Bucket(url, objects))
    findings = diagnose("s3://bucket/x", None)
    assert not (tmp_path / "deep").exists()
    of_the_bucket = ["bucket", "conditional writes", "bucket's speed"]
    assert list(findings) == [*of_the_bucket, *CHECKS]
    assert {findings[name].verdict for name in of_the_bucket} == {Verdict.GOOD}
    assert objects.list().collect() == []
    monkeypatch.setattr(Bucket, "put_new", lambda *_: None)
    findings = diagnose("s3://bucket/x", None)
    conditions, speed = findings["conditional writes"], findings["bucket's speed"]
    assert conditions.verdict is speed.verdict is Verdict.FAILED
    assert "ignores conditional writes" in conditions.seen
    assert conditions.change == "use another object store, or a shared folder"
    assert speed.change == "try again; if it fails again, use another object store"


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


def test_a_cluster_that_a_notice_keeps_down_is_stopped() -> None:
    """Nothing is missing or silent, and no row names a process that has ended."""
    waiting = replace(CLUSTER, state="waiting")
    rows = list(cluster_processes(waiting, LEADER, None, is_kept=True))
    assert [row.state for row in rows] == ["waiting", "stopped", "stopped", "stopped"]
    assert [row.pid for row in rows] == [7, 0, 0, 0]


def test_a_cluster_that_was_killed_says_so() -> None:
    """Its manager does not answer, so the check cannot name its workers."""
    rows = list(cluster_processes(CLUSTER, None, None, is_kept=False))
    assert [row.state for row in rows] == ["dead", "does not answer", "unknown", "unknown"]


def test_without_a_keeper_there_are_still_a_manager_and_its_workers() -> None:
    """They may have been started by hand, or by systemd."""
    rows = list(cluster_processes(None, LEADER, Status(change=1, workers=(WORKER,)), is_kept=False))
    assert [row.role for row in rows] == ["manager", "worker"]
