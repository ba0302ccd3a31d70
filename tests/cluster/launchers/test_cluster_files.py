"""A cluster that stays: what is left in the shared directory, and how its supervisor mends it."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from unittest.mock import MagicMock

import pytest

from downpour.base.errors import LaunchError, SharedDirectoryError
from downpour.cluster.launchers import kind_of
from downpour.cluster.launchers.cluster_files import ClusterFiles, ClusterInfo, StopRequest
from downpour.cluster.launchers.ssh import LocalEngine
from downpour.cluster.launchers.supervisor import SupervisedPlan, Supervisor, stop
from downpour.cluster.options import ManagerOptions
from downpour.host.child import NOTICE_SECONDS
from downpour.launchers import Ended, InlineCluster, Launcher, LaunchPlan
from tests.waiting import until

CLUSTER = ClusterInfo(on="local", hostname="n1", pid=7, workers=("worker-1",))


def test_a_description_is_read_as_it_was_written(tmp_path: Path) -> None:
    """By any process of any machine, as small JSON."""
    folder = ClusterFiles(tmp_path)
    assert folder.read() is None
    folder.write(CLUSTER)
    folder.write(replace(CLUSTER, state="up"))
    assert folder.read() == replace(CLUSTER, state="up")
    assert json.loads((tmp_path / "cluster.json").read_text())["format"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["cluster.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 2}', '{"on": 1}'])
def test_a_description_of_another_version_is_refused(text: str, tmp_path: Path) -> None:
    """Nor is what nobody has."""
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(SharedDirectoryError, match=r"cannot understand cluster.json"):
        ClusterFiles(tmp_path).read()


def test_there_is_one_keeper_and_the_second_is_told_who(tmp_path: Path) -> None:
    """What it has left is gone with it; one that was killed leaves a description, and no lock."""
    folder = ClusterFiles(tmp_path)
    folder.write(CLUSTER)
    assert not folder.is_kept()
    with folder.kept():
        assert folder.read() is None
        folder.write(CLUSTER)
        assert ClusterFiles(tmp_path).is_kept()
        with (
            pytest.raises(LaunchError, match=r"is already up .*process 7 of n1 keeps it") as told,
            ClusterFiles(tmp_path).kept(),
        ):
            pass
        assert told.value.exit_status == 2
    assert not folder.is_kept()
    assert folder.read() is None


def test_paths_inside_are_relative_to_the_directory(tmp_path: Path) -> None:
    """Other machines may have it elsewhere."""
    folder = ClusterFiles(tmp_path)
    assert folder.inside(str(tmp_path / "token")) == "token"
    assert folder.inside("/etc/token") == "/etc/token"
    assert folder.inside("") == ""


def test_stopping_a_gone_cluster_removes_its_file(tmp_path: Path) -> None:
    """So it may be repeated, also after a kill."""
    folder = ClusterFiles(tmp_path)
    assert stop(folder, 0.0) is None
    folder.write(CLUSTER)
    folder.write(StopRequest())
    assert stop(folder, 0.0) == CLUSTER
    assert list(tmp_path.iterdir()) == []


def plan_in(folder: Path, workers: int = 1) -> LaunchPlan:
    """A manager that stays, and workers."""
    return LaunchPlan(ManagerOptions(shared=str(folder), port=0), workers)


@contextmanager
def kept(plan: LaunchPlan, launcher: Launcher) -> Iterator[ClusterFiles]:
    """Keep a cluster in a thread; it must have ended with the block."""
    ended = Event()
    supervisor = Thread(target=Supervisor("inline", plan, launcher, ended.wait).keep, daemon=True)
    supervisor.start()
    try:
        yield ClusterFiles(Path(plan.manager.shared))
        supervisor.join(60)
        assert not supervisor.is_alive()
    finally:
        ended.set()
        supervisor.join(60)


def is_up(folder: ClusterFiles) -> bool:
    """Whether the cluster is up, and its workers are known."""
    cluster = folder.read()
    return cluster is not None and cluster.state == "up" and cluster.workers == ("worker-1",)


class Dying(InlineCluster):
    """A cluster that ends by itself, the first time that it is looked at."""

    deaths = 0

    def check(self) -> None:
        Dying.deaths += 1
        if Dying.deaths == 1:
            raise LaunchError("the manager has died")
        super().check()


@pytest.mark.slow
def test_a_manager_that_dies_is_started_again(tmp_path: Path) -> None:
    """With its workers; the next manager of the directory goes on where it ended."""
    Dying.deaths = 0
    with kept(plan_in(tmp_path), Dying) as folder:
        until(lambda: is_up(folder))
        assert len(list((tmp_path / "terms").iterdir())) == 2
        stop(folder, 0.0)


@pytest.mark.slow
def test_a_cluster_stays_down_while_a_notice_stands(tmp_path: Path) -> None:
    """The description names the notice; the cluster comes back once it is gone."""
    notice = tmp_path / "notice"
    with kept(replace(plan_in(tmp_path), notice=str(notice)), InlineCluster) as folder:
        until(lambda: is_up(folder))
        notice.touch()
        until(lambda: (cluster := folder.read()) and f"the notice {notice} says" in cluster.trouble)
        cluster = folder.read()
        assert cluster is not None
        assert cluster.state == "waiting"
        time.sleep(2 * NOTICE_SECONDS)
        assert len(list((tmp_path / "terms").iterdir())) == 1
        notice.unlink()
        until(lambda: is_up(folder))
        stop(folder, 0.0)


def test_a_worker_that_has_yet_to_say_its_device_names_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manager that took over knows its workers by name; `up` said "1 worker on ,"."""
    known = MagicMock(workers=[MagicMock(worker="worker-1", device="")])
    monkeypatch.setattr("downpour.cluster.launchers.supervisor._status", lambda _: known)
    supervisor = Supervisor("local", plan_in(tmp_path), MagicMock(), lambda _: True)
    supervisor._look_after(MagicMock(workers=["worker-1"]), MagicMock())
    cluster = ClusterFiles(tmp_path).read()
    assert cluster is not None
    assert (cluster.registered, cluster.devices) == (("worker-1",), ())


def test_a_first_start_that_fails_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    """It is not tried again, because somebody waits for it."""

    def refuse(plan: LaunchPlan) -> InlineCluster:
        raise LaunchError(f"no {plan.workers} hosts", asked_wrongly=True)

    with pytest.raises(LaunchError, match="no 1 hosts"):
        Supervisor("ssh", plan_in(tmp_path), refuse, lambda _: False).keep()
    assert not (tmp_path / "cluster.json").exists()


def test_a_keeper_gets_its_launcher_by_name_and_options(tmp_path: Path) -> None:
    """They come to its process as JSON, so lists are tuples again."""
    (tmp_path / "hosts").write_text("n1\n")
    options = {"hosts": str(tmp_path / "hosts")}
    assert SupervisedPlan(on="ssh", options=options, plan=plan_in(tmp_path)).launcher(
        plan_in(tmp_path)
    )
    assert kind_of("slurm").launcher({"sbatch": ["--qos=low"]})(plan_in(tmp_path))


@pytest.mark.slow
def test_workers_of_this_machine_have_a_leash_too(tmp_path: Path) -> None:
    """A shell of its own holds each, so they end with whoever holds its input."""
    engine = LocalEngine("127.0.0.1")
    engine.check(plan_in(tmp_path))
    worker = replace(plan_in(tmp_path).worker(1, "127.0.0.1:1"), connect_seconds=0.0)
    engine.start(worker, {}, tmp_path / "log")
    ended: dict[str, Ended] = {}
    until(lambda: bool(ended.update(engine.ended()) or ended))
    assert ended["worker-1"].status == 75
    assert "cannot be reached" in ended["worker-1"].reason
    engine.close()
