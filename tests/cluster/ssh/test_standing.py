"""A cluster that stays, on three hosts reached by ssh."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from downpour.cli import run_command
from downpour.cluster.launchers.cluster_files import ClusterFiles
from tests.cluster.ssh.lab import HOSTS, Lab
from tests.waiting import until

pytestmark = pytest.mark.slow


def up(ssh: Lab, shared: Path) -> None:
    """Start one with a worker on each host."""
    words = ["--on", "ssh", "--hosts", ssh.hosts(*HOSTS), "--ssh-config", str(ssh.config)]
    assert run_command(["up", "--shared", str(shared), "--port", "0", *words]) == 0


def processes(shared: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """Return what `ps` tells."""
    capsys.readouterr()
    run_command(["ps", "--shared", str(shared), "--json"])
    told: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["processes"]
    return told


def at_work(shared: Path, capsys: pytest.CaptureFixture[str]) -> set[int]:
    """Return the process IDs of the workers that the manager knows."""
    workers = [one for one in processes(shared, capsys) if one["role"] == "worker"]
    return {one["pid"] for one in workers if one["pid"]}


def test_workers_of_a_lost_host_come_back_and_another_machine_stops_all(
    ssh: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command that started it has ended long before, and nothing is left anywhere."""
    up(ssh, tmp_path)
    until(lambda: len(at_work(tmp_path, capsys)) == 3)
    before = at_work(tmp_path, capsys)
    ssh.lose("n2")
    until(lambda: len(at_work(tmp_path, capsys) - before) == 1)
    address = next(one["name"] for one in processes(tmp_path, capsys) if one["role"] == "manager")
    submit = ["submit", "--manager", address, "--epochs", "1", "--shards", "3", "--watch"]
    assert run_command(submit) == 0
    down = f"{sys.executable} -m downpour.cli down --shared {tmp_path} --drain-seconds 5"
    subprocess.run(["ssh", "-F", str(ssh.config), "n3", down], check=True)
    assert not processes(tmp_path, capsys)
    until(lambda: not ssh.running())


def test_a_killed_keepers_processes_end_with_it(
    ssh: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`ps` says so, and another cluster may be started at once."""
    up(ssh, tmp_path)
    until(lambda: len(at_work(tmp_path, capsys)) == 3)
    supervisor = processes(tmp_path, capsys)[0]
    assert supervisor["role"] == "supervisor"
    psutil.Process(supervisor["pid"]).kill()
    until(lambda: not ClusterFiles(tmp_path).is_kept())
    until(lambda: not ssh.running())
    assert run_command(["ps", "--shared", str(tmp_path)]) == 1
    assert run_command(["down", "--shared", str(tmp_path)]) == 0
