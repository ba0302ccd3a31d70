"""Experiments and a cluster that stays, on three hosts reached by ssh."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

import downpour
from downpour.base.errors import LaunchError
from downpour.cli import run_command
from downpour.cluster.launchers.cluster_files import ClusterFiles
from downpour.cluster.options import ManagerOptions
from downpour.core.spec import Spec
from downpour.launchers import LaunchPlan, SshOptions, on_ssh
from downpour.network.rpc.messages import Status
from tests.cluster.ssh.lab import HOSTS, Lab
from tests.specs import model_of
from tests.waiting import until

pytestmark = pytest.mark.slow

SPEC = Spec(shards=3, epochs=3, batch_size=32, learning_rate=0.05)


def test_a_host_is_lost_and_the_model_has_the_bytes_of_a_run_here(ssh: Lab, tmp_path: Path) -> None:
    """All that runs on it is killed in the middle; nothing is left anywhere in the end."""
    lost: list[str] = []

    def look(status: Status) -> None:
        began = status.experiment is not None and status.experiment.rounds_done > 0
        if began and not lost:
            lost.append("n2")
            ssh.lose("n2")

    options = SshOptions(hosts=ssh.hosts(*HOSTS), ssh_config=str(ssh.config))
    there = downpour.run(
        SPEC, workers=3, shared=tmp_path / "there", on=on_ssh(options), on_status=look
    )
    here = downpour.run(SPEC, workers=3, shared=tmp_path / "here", on="inline", progress=False)
    assert lost
    assert model_of(there) == model_of(here)
    until(lambda: not ssh.running())


def test_a_worker_that_is_lost_is_started_again_there_or_in_a_free_slot(
    ssh: Lab, tmp_path: Path
) -> None:
    """Where a host cannot be reached any more, another one instead."""
    options = SshOptions(hosts=ssh.hosts("n1", "n2"), ssh_config=str(ssh.config))
    plan = LaunchPlan(ManagerOptions(shared=str(tmp_path), embedded=True), 1)

    def up(host: str, times: int) -> bool:
        cluster.check()
        return cluster.log.read_text().count(f"{host} worker-1: worker at") == times

    with on_ssh(options)(plan) as cluster:
        until(lambda: up("n1", 1))
        ssh.lose_worker("n1")
        until(lambda: up("n1", 2))
        ssh.lose("n1")
        until(lambda: up("n2", 1))
    until(lambda: not ssh.running())


def test_an_impossible_launch_is_refused_before_any_start(ssh: Lab, tmp_path: Path) -> None:
    """The line names the host, what is wrong with it, and what to do; the exit status is 2."""
    (tmp_path / "other").mkdir()
    (tmp_path / "bare").write_text('#!/bin/sh\nexec python3 -I -S "$@"\n')
    (tmp_path / "bare").chmod(0o755)
    wrong = {
        "n9": "n9: ssh: ",
        "n2 python=/no/such/python": "n2: cannot run /no/such/python",
        f"n2 python={tmp_path}/bare": "has no downpour",
        f"n2 shared={tmp_path}/none": "is no folder there",
        f"n2 shared={tmp_path}/other": "is another folder there",
        "stranger@n2": "stranger@n2: ssh: .*must work without a password",
    }
    for line, reason in wrong.items():
        options = SshOptions(hosts=ssh.hosts("n1", line), ssh_config=str(ssh.config))
        plan = LaunchPlan(ManagerOptions(shared=str(tmp_path / "shared"), embedded=True), 2)
        with pytest.raises(LaunchError, match=reason) as told, on_ssh(options)(plan):
            pass
        assert told.value.exit_status == 2
        assert "\n" not in str(told.value)
    assert not ssh.running()
    assert not [path for path in (tmp_path / "shared").iterdir() if path.name.startswith(".tmp")]


def test_doctor_tells_hosts_apart(
    ssh: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each problem is a line of its own, and hosts that are fine are told all the same."""
    (tmp_path / "other").mkdir()
    hosts = ssh.hosts("n1", f"n2 shared={tmp_path}/other", "n3 slots=999", "stranger@n1")
    words = ["doctor", "--shared", str(tmp_path), "--hosts", hosts, "--ssh-config", str(ssh.config)]
    assert run_command([*words, "--json"]) == 2
    reports = json.loads(capsys.readouterr().out)["hosts"]
    problems = [[one["seen"] for one in report["problems"]] for report in reports]
    assert [len(some) for some in problems] == [0, 1, 2, 1]
    assert "another folder there" in problems[1][0]
    assert "999 slots on" in problems[2][0]
    assert "must work without a password" in problems[3][0]
    assert not ssh.running()


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
    down = f"{sys.executable} -m downpour down --shared {tmp_path} --drain-seconds 5"
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
