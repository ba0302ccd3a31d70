"""`downpour up`, `down` and `ps` on the command line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
import pytest

from downpour.base.names import Devices
from downpour.cli import up_and_down
from downpour.cluster.launchers import Launching, supervisor
from downpour.cluster.launchers.cluster_files import ClusterFiles, ClusterInfo
from downpour.host.machine import usable_cores
from downpour.learning import accelerators, auto
from tests.chaos.line import free_port

Downpour = Callable[..., Any]


def test_ps_and_down_without_a_cluster_do_nothing(downpour: Downpour, tmp_path: Path) -> None:
    """Both succeed, as often as one likes, also where there is no such folder."""
    for folder in (tmp_path, tmp_path / "none"):
        shown = downpour("ps", "--shared", folder)
        assert shown.status == 0
        assert shown.out.startswith("no cluster is up in ")
        assert json.loads(downpour("ps", "--shared", folder, "--json").out)["processes"] == []
        stopped = downpour("down", "--shared", folder)
        assert stopped.status == 0
        assert stopped.err.startswith("no cluster is up in ")


def test_a_second_up_says_who_keeps_the_first(refused: Callable[..., str], tmp_path: Path) -> None:
    """Nothing is started."""
    folder = ClusterFiles(tmp_path)
    with folder.kept():
        folder.write(ClusterInfo(on="local", hostname="n1", pid=7))
        line = refused("up", "--shared", tmp_path)
    assert line.startswith(f"a cluster is already up in {tmp_path} (process 7 of n1 keeps it)")
    assert line.endswith("`downpour down` stops it")


def test_one_that_was_killed_is_shown_and_its_rest_removed(
    downpour: Downpour, tmp_path: Path
) -> None:
    """`ps` has exit status 1 then."""
    ClusterFiles(tmp_path).write(ClusterInfo(on="local", hostname="n1", pid=7))
    shown = downpour("ps", "--shared", tmp_path)
    assert shown.status == 1
    assert "its supervisor has died" in shown.out
    assert "had died" in downpour("down", "--shared", tmp_path).err
    assert not (tmp_path / "cluster.json").exists()


def test_a_manager_without_a_keeper_is_shown(downpour: Downpour, served: Any) -> None:
    """It was started by hand, or by systemd."""
    shown = downpour("ps", "--shared", served.shared)
    assert shown.status == 0
    assert [line.split()[0] for line in shown.out.splitlines()] == ["process", "manager"]


def test_a_dry_run_prints_units_and_writes_nothing(downpour: Downpour, tmp_path: Path) -> None:
    """One for the manager, and a template for the workers."""
    shown = downpour("up", "--service", "--dry-run", "--shared", tmp_path / "lab", "--workers", 2)
    assert shown.status == 0
    assert shown.out.count("[Unit]") == 2
    words = ("up", "--service", "--dry-run", "--shared", tmp_path / "lab")
    alone = downpour(*words, "--no-manager")
    assert alone.out.count("[Unit]") == 1
    assert "--metrics-port 9100" in downpour(*words, "--metrics-port", 9100).out
    refused = downpour(*words, "--no-manager", "--metrics-port", 9100)
    assert (refused.status, refused.out) == (2, "")
    assert refused.err.startswith("downpour: metrics_port = 9100: the manager serves")
    assert not list(tmp_path.iterdir())


def test_each_accelerator_here_gets_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """And each processor, where no accelerator is wanted."""
    cores = usable_cores()
    monkeypatch.setattr(auto, "_may_have_any", lambda *_: True)
    monkeypatch.setattr(accelerators, "devices_here", lambda: Devices({"cuda": cores + 2}))
    here = Launching.of({}, {})
    wanted = [up_and_down._wanted(here, device) for device in ("auto", "cuda:1", "cpu")]
    assert wanted == [cores + 2, 1, cores]


def test_workers_that_stay_have_the_labels_of_the_command(
    downpour: Downpour, tmp_path: Path
) -> None:
    """Whoever keeps them: systemd, or an engine."""
    words = ("up", "--dry-run", "--shared", tmp_path / "lab", "--workers", 1, "--label", "site=b")
    assert " --label site=b --accept-code --place %i\n" in downpour(*words, "--service").out
    placed = downpour(*words, "--on", "slurm", "--place", "gpu=a40")
    assert "--label site=b --label gpu=a40 " in placed.out


def test_without_systemd_a_service_is_refused_in_a_line(
    refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written."""
    monkeypatch.setattr(supervisor, "RUNNING", tmp_path / "none")
    for command in ("up", "down"):
        line = refused(command, "--service", "--shared", tmp_path / "lab")
        assert line.startswith("systemd does not run here")
    assert not list(tmp_path.iterdir())


def ours(folder: Path) -> list[str]:
    """Return the command lines of processes that have to do with a folder."""
    found = []
    for process in psutil.process_iter():
        try:
            words = " ".join(process.cmdline())
        except psutil.Error:
            continue
        if str(folder) in words:
            found.append(words)
    return found


@pytest.mark.slow
def test_a_cluster_outlives_the_command_and_takes_experiments_until_it_is_stopped(
    downpour: Downpour, tmp_path: Path
) -> None:
    """Its supervisor starts a worker again that was killed; the end leaves no process."""
    started = downpour("up", "--shared", tmp_path, "--workers", 2, "--port", 0)
    assert started.status == 0, started
    try:
        address = started.out.split()[2].rstrip(",")
        words = ("--manager", address, "--shared", tmp_path)
        done = downpour("submit", *words, "--watch", "--epochs", 1, "--shards", 2)
        assert done.status == 0, done
        told = json.loads(downpour("ps", "--shared", tmp_path, "--json").out)
        assert told["cluster"]["kept"]
        pids = {one["name"]: one["pid"] for one in told["processes"] if one["role"] == "worker"}
        psutil.Process(pids["worker-1"]).kill()
        done = downpour("submit", *words, "--watch", "--epochs", 1, "--shards", 2)
        assert done.status == 0, done
    finally:
        stopped = downpour("down", "--shared", tmp_path, "--drain-seconds", 5)
    assert "stopped 2 workers" in stopped.err
    assert not ours(tmp_path)
    assert not (tmp_path / "cluster.json").exists()
    assert downpour("down", "--shared", tmp_path).status == 0


@pytest.mark.slow
def test_up_returns_with_its_workers_and_they_survive_their_manager(
    downpour: Downpour, tmp_path: Path
) -> None:
    """`ps` shows all at once; a killed manager is replaced, with its metrics, and they stay."""

    def pids(role: str) -> dict[str, int]:
        told = json.loads(downpour("ps", "--shared", tmp_path, "--json").out)["processes"]
        return {one["name"]: one["pid"] for one in told if one["role"] == role}

    metrics = free_port()
    words = "--shared", tmp_path, "--workers", 2, "--port", 0, "--metrics-port", metrics
    started = downpour("up", *words)
    assert started.status == 0, started
    assert "not registered" not in started.err
    try:
        shown = downpour("ps", "--shared", tmp_path).out
        assert "starting" not in shown, shown
        workers, (manager,) = pids("worker"), pids("manager").values()
        assert len(workers) == 2
        psutil.Process(manager).kill()
        done = downpour("submit", "--shared", tmp_path, "--watch", "--epochs", 2, "--shards", 2)
        assert done.status == 0, done
        assert pids("worker") == workers
        assert manager not in pids("manager").values()
        with urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=10) as answer:
            assert b"downpour_experiments" in answer.read()
    finally:
        assert downpour("down", "--shared", tmp_path).status == 0
