"""A cluster whose workers an engine places: here as processes that it starts by their command."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from socket import create_server

import pytest

from downpour import Client
from downpour.base.errors import LaunchError
from downpour.base.states import ExperimentState
from downpour.cluster.launchers import Ended, LaunchPlan, PlacedCluster
from downpour.cluster.launchers.cluster import PAUSES_SECONDS
from downpour.cluster.manager.options import ManagerOptions
from downpour.cluster.worker.options import WorkerOptions
from downpour.core.spec import Spec
from downpour.host.paths import Credentials
from downpour.network.rpc.messages import Status
from tests.cluster.launchers.processes import Processes


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
        """Return each end once."""
        over, self.over = self.over, {}
        return over


def plan(shared: Path, workers: int = 2) -> LaunchPlan:
    """Return a manager of one run, and workers."""
    return LaunchPlan(ManagerOptions(shared=str(shared), port=0, embedded=True), workers)


@pytest.mark.slow
def test_a_worker_that_dies_is_started_again_and_the_experiment_ends(tmp_path: Path) -> None:
    """The place of a worker that was killed is filled under the same name.

    It is the only worker, so without another one nothing would end.
    """
    engine = Processes()
    with PlacedCluster(plan(tmp_path, 1), engine) as cluster, Client(cluster.address) as client:
        experiment = client.submit(Spec(shards=2, epochs=10))

        def look(status: Status) -> None:
            if status.workers and len(engine.started) == 1:
                engine.running["worker-1"].send_signal(signal.SIGKILL)

        client.wait(experiment, on_status=look, check=cluster.check)
        state = client.status(experiment).experiment
    assert state is not None
    assert state.state is ExperimentState.FINISHED
    assert [worker.name for worker in engine.started] == ["worker-1", "worker-1"]
    assert all(process.returncode is not None for process in engine.running.values())


def test_what_an_engine_refuses_starts_nothing(tmp_path: Path) -> None:
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
        """Note it."""
        self.closed += 1


def test_what_an_engine_has_reserved_goes_if_the_manager_cannot_start(tmp_path: Path) -> None:
    """The engine is closed, although no worker was started."""
    engine = Closing(status=0)
    with create_server(("127.0.0.1", 0)) as taken:
        manager = replace(plan(tmp_path).manager, port=taken.getsockname()[1])
        with pytest.raises(LaunchError, match="port = "):
            PlacedCluster(LaunchPlan(manager, 1), engine).__enter__()
    assert not engine.started
    assert engine.closed == 1


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
        """End it."""
        self.over[name] = Ended(0)


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
