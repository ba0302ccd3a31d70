"""Clusters: a manager here, and workers that an engine places; nothing outlives the launcher."""

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from socket import create_server
from unittest.mock import MagicMock

import psutil
import pytest

import downpour
from downpour import Client, Credentials, Spec
from downpour.base.errors import LaunchError
from downpour.cluster.launchers.cluster import (
    LASTING_SECONDS,
    PAUSES_SECONDS,
    RESTARTS_MAX,
    ManagerHost,
)
from downpour.cluster.launchers.forkserver import KEPT, new_log
from downpour.cluster.options import ManagerOptions, WorkerOptions
from downpour.launchers import Ended, InlineCluster, LaunchPlan, LocalCluster, PlacedCluster
from downpour.network.rpc.messages import Status
from tests.cluster.launchers.processes import Processes
from tests.conftest import Allow


class Doomed(Processes):
    """An engine whose workers end at once, with a status."""

    def __init__(self, status: int) -> None:
        super().__init__()
        self.status = status
        self.over: dict[str, Ended] = {}

    def start(self, worker: WorkerOptions, environment: Mapping[str, str], log: Path) -> None:
        """Start nothing: it has ended already."""
        assert environment["OMP_NUM_THREADS"] == "1"
        assert log.is_file()
        self.started.append(worker)
        self.over[worker.name] = Ended(self.status, "the folder is missing")

    def ended(self) -> Mapping[str, Ended]:
        over, self.over = self.over, {}
        return over


def plan(shared: Path, workers: int = 2) -> LaunchPlan:
    """Return a manager of one run, and workers."""
    return LaunchPlan(ManagerOptions(shared=str(shared), port=0, embedded=True), workers)


def test_the_workers_of_a_plan_wait_for_its_notice(tmp_path: Path) -> None:
    """It is a word of theirs, wherever they are started."""
    words = replace(plan(tmp_path), notice="curl -sf URL").worker(1, "").arguments()
    assert words[words.index("--notice") + 1] == "curl -sf URL"


def test_all_processes_of_a_plan_have_its_loaders(tmp_path: Path) -> None:
    """The manager's are for evaluations, and their number is written on its command line."""
    planned = replace(plan(tmp_path), loaders="3")
    assert planned.manager.loaders == planned.worker(1, "127.0.0.1:7000").loaders == "3"
    assert "--loaders" in planned.manager.arguments()


def test_an_inline_worker_has_no_loaders_and_takes_no_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shares a process with the script of the user, which a loader would run again."""
    asked = SimpleQueue[WorkerOptions]()
    work = "downpour.cluster.worker.process.run_worker"
    monkeypatch.setattr(work, lambda options, *_, **__: asked.put(options))
    with InlineCluster(replace(plan(tmp_path, workers=1), loaders="4")):
        options = asked.get(timeout=60)
    assert (options.loaders, options.accepts_code) == ("0", False)


def test_a_plan_that_the_engine_refuses_starts_nothing(tmp_path: Path) -> None:
    """The engine's line is the error, and no process is started for it."""
    engine = Processes(refusal="host b: asks for a password")
    with pytest.raises(LaunchError, match="host b: asks for a password") as told:
        PlacedCluster(plan(tmp_path), engine).__enter__()
    assert told.value.exit_status == 2
    assert not engine.started
    assert not (tmp_path / "logs").exists()


class Closing(Doomed):
    """An engine that notes that it is closed."""

    closed = 0

    def close(self) -> None:
        self.closed += 1


@pytest.mark.slow
def test_reservations_are_released_if_the_manager_cannot_start(tmp_path: Path) -> None:
    """The engine is closed, although no worker was started."""
    engine = Closing(status=0)
    with create_server(("127.0.0.1", 0)) as taken:
        manager = replace(plan(tmp_path).manager, port=taken.getsockname()[1])
        with pytest.raises(LaunchError, match="port = "):
            PlacedCluster(LaunchPlan(manager, 1), engine).__enter__()
    assert not engine.started
    assert engine.closed == 1


@pytest.mark.slow
def test_workers_that_end_with_2_are_not_started_again(tmp_path: Path) -> None:
    """The user has to correct something, so the cluster ends with the worker's own reason."""
    engine = Doomed(status=2)
    with (
        pytest.raises(LaunchError, match=r"worker-1: the folder is missing; see .*/logs/") as told,
        PlacedCluster(plan(tmp_path), engine) as cluster,
    ):
        cluster.check()
    assert told.value.exit_status == 2
    assert len(engine.started) == 2


@pytest.mark.slow
def test_workers_that_crash_are_started_again_after_growing_pauses(tmp_path: Path) -> None:
    """Any other status is worth another try, less and less often, for as long as the run lasts."""
    engine, clock = Doomed(status=255), [0.0]
    with PlacedCluster(plan(tmp_path, workers=1), engine, lambda: clock[0]) as cluster:
        starts = []
        while len(engine.started) <= len(PAUSES_SECONDS):
            before = len(engine.started)
            cluster.check()
            starts += [clock[0]] * (len(engine.started) - before)
            clock[0] += 0.5
    pauses = [later - sooner for sooner, later in pairwise(starts)]
    assert pauses == pytest.approx(PAUSES_SECONDS[1:], abs=0.5)
    assert {worker.name for worker in engine.started} == {"worker-1"}


@pytest.mark.slow
def test_a_policy_gets_as_many_further_workers_as_there_were(tmp_path: Path) -> None:
    """`provide` starts what is asked for in all, up to double the number of the beginning."""
    engine = Doomed(status=0)
    with PlacedCluster(plan(tmp_path), engine) as cluster:
        cluster.provide(1)
        cluster.provide(1)
        cluster.provide(9)
    assert [worker.name for worker in engine.started] == [f"worker-{n}" for n in range(1, 5)]


class Lent(Doomed):
    """An engine whose workers run until they are told to leave."""

    def start(self, worker: WorkerOptions, environment: Mapping[str, str], log: Path) -> None:
        """Start nothing that ends."""
        del environment, log
        self.started.append(worker)

    def stop(self, name: str) -> None:
        self.over[name] = Ended(0)


@pytest.mark.slow
def test_a_worker_that_a_policy_asked_for_is_given_back_when_it_is_idle_for_long(
    tmp_path: Path,
) -> None:
    """Those of the beginning stay, and so does one that works in between; another may be had."""
    engine, clock = Lent(status=0), [0.0]
    asked = replace(plan(tmp_path), idle_seconds=30.0)
    with PlacedCluster(asked, engine, lambda: clock[0]) as cluster:
        cluster.provide(2, {"worker-1", "worker-2", "worker-3", "worker-4"})
        clock[0] = 20.0
        cluster.provide(2, {"worker-1", "worker-2", "worker-3"})
        clock[0] = 40.0
        for _ in range(2):
            cluster.provide(2, {"worker-1", "worker-2", "worker-3", "worker-4"})
            cluster.check()
        assert cluster.workers == ["worker-1", "worker-2", "worker-4"]
        cluster.provide(3)
        assert cluster.workers == ["worker-1", "worker-2", "worker-4", "worker-5"]


@pytest.mark.slow
def test_a_manager_that_other_machines_reach_gets_a_token(tmp_path: Path) -> None:
    """It listens at the engine's address, and the workers are told the token's file."""
    engine = Doomed(status=0)
    with PlacedCluster(plan(tmp_path), engine) as cluster:
        assert cluster.credentials == Credentials()
    engine.manager_host = "0.0.0.0"
    with PlacedCluster(plan(tmp_path), engine) as cluster:
        assert cluster.credentials == Credentials(token_file=str(tmp_path / "token"))
        assert engine.started[-1].credentials == cluster.credentials
    given = Credentials(token="the token of this test")
    manager = replace(plan(tmp_path).manager, credentials=given)
    with PlacedCluster(LaunchPlan(manager, 1), engine) as cluster:
        assert cluster.credentials == given


PATIENCE_SECONDS = 30


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


MANAGER_IS_UP = '{"name": "manager", "answer": "127.0.0.1:1"}'


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


def test_a_workers_last_words_keep_its_exit_status(
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


def test_a_manager_that_keeps_dying_early_is_not_said_to_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After ten restarts; one that has run for a minute counts afresh."""
    server, seconds = MagicMock(log=tmp_path, is_over=False), [0.0]
    server.exit_status.return_value = -9
    server.answer_of.return_value = "127.0.0.1:1"
    server.error_of.return_value = LaunchError("it died")
    host = ManagerHost(plan(tmp_path), lambda: seconds[0], server)
    for pause in (LASTING_SECONDS, 0.0):
        for _ in range(RESTARTS_MAX):
            host.check()
        seconds[0] += pause
    with pytest.raises(LaunchError, match="it died"):
        host.check()
    assert caplog.text.count("restarting it") == 2 * RESTARTS_MAX
    host.close()


NO_PROCESS = 999_999_999


def test_the_last_logs_are_kept_and_nothing_else_is_touched(tmp_path: Path) -> None:
    """Of thirty the oldest go; a user's own file stays, and the log of a run that goes on."""
    folder = tmp_path / "logs"
    folder.mkdir()
    old = [folder / f"20260101-0000{second:02}-{NO_PROCESS}" for second in range(30)]
    others = [folder / "notes.txt", folder / f"20250101-000000-{os.getpid()}"]
    for path in [*old, *others]:
        path.touch()
    log = new_log(tmp_path)
    log.touch()
    left = set(folder.iterdir()) - {log}
    assert left == {*old[-(KEPT - 1) :], *others}


def test_the_folder_is_made_where_there_is_none(tmp_path: Path) -> None:
    """The log itself is its owner's to open."""
    log = new_log(tmp_path / "new")
    assert log.parent.is_dir()
    assert not log.exists()
    assert log.name.endswith(f"-{os.getpid()}")
