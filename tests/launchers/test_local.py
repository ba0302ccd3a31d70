"""Processes on this machine: they start together, and nothing outlives its launcher."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from downpour import Client, Credentials, Spec
from downpour.errors import LaunchError
from downpour.launchers import LaunchPlan, LocalCluster
from downpour.manager.options import ManagerOptions

PATIENCE_SECONDS = 30
LAUNCH = """
import sys, time
from downpour.launchers import LaunchPlan, LocalCluster
from downpour.manager.options import ManagerOptions
with LocalCluster(LaunchPlan(ManagerOptions(shared=sys.argv[1], port=0), workers=2)) as cluster:
    print(cluster.address, flush=True)
    time.sleep(600)
"""


def options(shared: Path, port: int = 0) -> ManagerOptions:
    """Make options of a manager."""
    return ManagerOptions(shared=str(shared), port=port)


def running() -> list[psutil.Process]:
    """Return the fork servers, managers and workers that descend from this process."""
    children = psutil.Process().children(recursive=True)
    return [one for one in children if "downpour.launchers.forkserver" in one.cmdline()]


@pytest.mark.slow
def test_a_cluster_comes_up_and_goes_without_a_trace(tmp_path: Path) -> None:
    """Inside the context a manager and its workers run; after it, none of their processes does."""
    with (
        LocalCluster(LaunchPlan(options(tmp_path), workers=3)) as cluster,
        Client(cluster.address) as client,
    ):
        for status in client.watch():
            if len(status.workers) == 3:
                break
        processes = running()
        assert len(processes) == 5  # fork server, manager, three workers
        cluster.check()
    gone, alive = psutil.wait_procs(processes, timeout=PATIENCE_SECONDS)
    assert not alive, gone


@pytest.mark.slow
def test_workers_hold_the_token_that_their_manager_asks_for(tmp_path: Path) -> None:
    """They are let in, and so is who holds it besides them; and it is in no command line."""
    credentials = Credentials(token="the token of this test")
    asking = ManagerOptions(shared=str(tmp_path), port=0, credentials=credentials)
    with LocalCluster(LaunchPlan(asking, workers=2)) as cluster:
        with Client(cluster.address, credentials=credentials) as client:
            for status in client.watch():
                if len(status.workers) == 2:
                    break
        assert not [one for one in running() if credentials.token in " ".join(one.cmdline())]


@pytest.mark.slow
def test_a_launcher_that_is_killed_takes_everything_with_it(tmp_path: Path) -> None:
    """Even `kill -9` of the launcher leaves no process behind."""
    with subprocess.Popen(
        [sys.executable, "-c", LAUNCH, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as launcher:
        assert launcher.stdout is not None
        address = launcher.stdout.readline().strip()
        with Client(address) as client:
            for status in client.watch():
                if len(status.workers) == 2:
                    break
        processes = psutil.Process(launcher.pid).children(recursive=True)
        assert len(processes) == 4
        launcher.kill()
    _, alive = psutil.wait_procs(processes, timeout=PATIENCE_SECONDS)
    assert not alive


@pytest.mark.slow
def test_a_worker_that_is_killed_costs_only_a_retry(tmp_path: Path) -> None:
    """Another worker trains its shard, and the experiment finishes."""
    with (
        LocalCluster(LaunchPlan(options(tmp_path), workers=2)) as cluster,
        Client(cluster.address) as client,
    ):
        experiment = client.submit(Spec(shards=2, epochs=60, batch_size=8))
        for status in client.watch(experiment):
            if any(task.steps_done for task in status.tasks) and len(status.workers) == 2:
                break
        victim = max(running(), key=lambda process: process.create_time())
        victim.send_signal(signal.SIGKILL)
        result = client.wait(experiment, check=cluster.check)
    assert result.state == "finished"
    assert len(result.tasks) == 120


@pytest.mark.slow
def test_when_all_workers_have_died_the_launcher_says_so(tmp_path: Path) -> None:
    """`check` raises one line instead of waiting for ever."""
    with (
        LocalCluster(LaunchPlan(options(tmp_path), workers=1)) as cluster,
        Client(cluster.address) as client,
    ):
        experiment = client.submit(Spec(shards=1, epochs=1000))
        for status in client.watch(experiment):
            if status.workers:
                break
        max(running(), key=lambda process: process.create_time()).kill()
        with pytest.raises(LaunchError, match="worker-1 ended with status -9"):
            client.wait(experiment, check=cluster.check)


def test_a_port_in_use_is_told_in_one_line(tmp_path: Path) -> None:
    """The manager cannot start, and the launcher says which port is taken."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(LaunchError, match=f"port = {port}") as failed,
            LocalCluster(LaunchPlan(options(tmp_path, port), workers=1)),
        ):
            pass
    assert failed.value.exit_status == 2


def scripted(monkeypatch: pytest.MonkeyPatch, folder: Path, *lines: str) -> None:
    """Put a script in the fork server's place: it says these lines, or ends its news at once."""
    script = folder / "forkserver"
    said = "\n".join(f"echo '{line}'" for line in lines) or "exec 1>&-"
    script.write_text(f"#!/bin/sh\n{said}\ncat > /dev/null\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))


MANAGER_IS_UP = '{"name": "manager", "address": "127.0.0.1:1"}'


def test_a_fork_server_that_falls_silent_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The end of its news ends the start, even before the process itself has ended."""
    scripted(monkeypatch, tmp_path)
    with (
        pytest.raises(LaunchError, match="manager did not start"),
        LocalCluster(LaunchPlan(options(tmp_path), workers=1)),
    ):
        pass


def test_a_fork_server_that_dies_at_once_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whether it dies before or after the request: the launcher says so, and closes."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(LaunchError), LocalCluster(LaunchPlan(options(tmp_path), workers=1)):
        pass


def test_what_a_process_says_of_its_death_keeps_its_exit_status(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What a user can mend ends with status 2 here as well."""
    told = '{"name": "worker-1", "error": "device = cuda: none here", "status": 2}'
    ended = '{"name": "worker-1", "exited": 2}'
    scripted(monkeypatch, tmp_path, MANAGER_IS_UP, told, ended)
    with LocalCluster(LaunchPlan(options(tmp_path), workers=1)) as cluster:
        with cluster._changed:
            assert cluster._changed.wait_for(
                lambda: "exited" in cluster._news.get("worker-1", {}), PATIENCE_SECONDS
            )
        with pytest.raises(LaunchError, match="none here") as failure:
            cluster.check()
    assert failure.value.exit_status == 2


def test_a_cluster_without_workers_of_its_own_is_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Workers may come from elsewhere; that none was started is not that all have died."""
    scripted(monkeypatch, tmp_path, MANAGER_IS_UP)
    with LocalCluster(LaunchPlan(options(tmp_path), workers=0)) as cluster:
        cluster.check()
