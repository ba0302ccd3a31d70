"""Processes on this machine: they start together, and nothing outlives its launcher."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

import downpour
from downpour import Client, Credentials, Spec
from downpour.base.errors import LaunchError
from downpour.cluster.launchers import LaunchPlan, LocalCluster
from downpour.cluster.manager.options import ManagerOptions
from downpour.network.rpc.messages import Status
from tests.conftest import Allow

PATIENCE_SECONDS = 30
LAUNCH = """
import sys, time
from downpour.cluster.launchers import LaunchPlan, LocalCluster
from downpour.cluster.manager.options import ManagerOptions
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
    return [one for one in children if one.cmdline()[:1] and "downpour: " in one.cmdline()[0]]


def called(name: str) -> psutil.Process:
    """Return the process that `ps` shows under a name."""
    [found] = [one for one in running() if one.cmdline()[0] == f"downpour: {name}"]
    return found


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


LONG = Spec(shards=2, epochs=28, batch_size=8)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The model that comes of a long spec when nobody is killed."""
    shared = tmp_path_factory.mktemp("undisturbed")
    result = downpour.run(LONG, workers=1, shared=shared, on="inline", progress=False)
    assert result.model_file is not None
    return result.model_file.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["fork server", "manager", "worker-1", "worker-2"])
def test_a_run_survives_each_process_that_it_starts(
    tmp_path: Path, undisturbed: bytes, victim: str
) -> None:
    """Killed twice, each costs seconds: the run goes on from its journal, to the same bytes."""
    killed: list[int] = []

    def kill(status: Status) -> None:
        done = (status.experiment.epochs_done or 0) if status.experiment else 0
        if done >= 8 * (len(killed) + 1) and len(killed) < 2:
            killed.append(called(victim).pid)
            psutil.Process(killed[-1]).kill()

    result = downpour.run(LONG, workers=2, shared=tmp_path, on_status=kill)
    assert len(set(killed)) == 2
    assert result.model_file is not None
    assert result.model_file.read_bytes() == undisturbed
    assert len(result.epochs) == LONG.epochs
    assert not running()
    # Nothing continues a run that has ended.
    assert not list(result.model_file.parent.glob("journal-*"))


def lives(pid: int) -> bool:
    """Whether a process runs; a dead one whose parent has not looked yet does not."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


CHILD = """
import multiprocessing, os, pathlib, time
import downpour, torch

class Forks(downpour.Task):
    def model(self):
        return torch.nn.Linear(1, 1)

    def examples(self, part):
        return [(torch.ones(1), torch.ones(1))] * 8

    def loss(self, model, batch):
        if not hasattr(self, "child"):
            self.child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
            self.child.start()
            pathlib.Path(os.environ["CHILDREN"], str(self.child.pid)).touch()
        x, y = batch
        return ((model(x) - y) ** 2).mean()
"""


@pytest.mark.slow
@pytest.mark.timeout(100)
def test_a_child_that_a_task_leaves_behind_holds_up_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowing: Allow
) -> None:
    """The result is there when the experiment ends, and the child ends with its worker."""
    (tmp_path / "forks.py").write_text(CHILD)
    (tmp_path / "children").mkdir()
    monkeypatch.setenv("CHILDREN", str(tmp_path / "children"))
    allowing(tmp_path, "forks")
    spec = Spec(task="forks:Forks", shards=1, epochs=1)
    result = downpour.run(spec, workers=1, shared=tmp_path / "shared", progress=False)
    assert result.state == "finished"
    children = [int(path.name) for path in (tmp_path / "children").iterdir()]
    assert children
    assert not [pid for pid in children if lives(pid)]


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
        server = cluster._server
        with server._changed:
            assert server._changed.wait_for(
                lambda: server.exit_status("worker-1") is not None, PATIENCE_SECONDS
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
