"""What every launcher promises, wherever its workers run."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from socket import create_server

import psutil
import pytest

import downpour
from downpour.api import embed
from downpour.errors import LaunchError
from downpour.launchers import (
    InlineCluster,
    Launcher,
    LaunchPlan,
    LocalCluster,
    PlacedCluster,
    RunningCluster,
)
from downpour.manager.options import ManagerOptions
from downpour.spec import Spec
from tests.launchers.processes import Processes

SPEC = Spec(shards=3, epochs=2, batch_size=32, task_options={}, learning_rate=0.05)


def placed(plan: LaunchPlan) -> RunningCluster:
    """Place the workers by an engine of processes."""
    return PlacedCluster(plan, Processes())


LAUNCHERS: dict[str, Launcher] = {"local": LocalCluster, "inline": InlineCluster, "placed": placed}


@pytest.fixture(params=LAUNCHERS)
def launcher(request: pytest.FixtureRequest) -> Launcher:
    """Each launcher."""
    return LAUNCHERS[request.param]


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of the model that this machine's processes train."""
    return trained(LocalCluster, tmp_path_factory.mktemp("usual"))


def trained(launcher: Launcher, shared: Path) -> bytes:
    """Train with three workers; return the bytes of the model."""
    result = downpour.run(SPEC, workers=3, shared=shared, on=launcher, progress=False)
    assert result.model_file is not None
    return result.model_file.read_bytes()


@pytest.mark.slow
def test_the_model_has_the_bytes_that_it_has_everywhere(
    launcher: Launcher, usual: bytes, tmp_path: Path
) -> None:
    """It does not matter to an experiment where its workers run."""
    assert trained(launcher, tmp_path) == usual


@pytest.mark.slow
def test_nothing_is_left_of_a_cluster_not_even_after_an_error(
    launcher: Launcher, tmp_path: Path
) -> None:
    """Every process and every thread that it has started ends with the block."""
    before = set(threading.enumerate())
    processes = set(psutil.Process().children(recursive=True))
    with suppress(KeyboardInterrupt), embed(SPEC, 2, shared=tmp_path, on=launcher) as running:
        cluster, client = running
        next(status for status in client.watch() if len(status.workers) == 2)
        cluster.check()
        raise KeyboardInterrupt
    assert not set(psutil.Process().children(recursive=True)) - processes
    left = set(threading.enumerate()) - before
    for thread in left:  # an import that a worker has begun cannot be stopped
        thread.join(60)
    assert not any(thread.is_alive() for thread in left)


@pytest.mark.slow
def test_a_policy_gets_further_workers_up_to_double_their_number(
    launcher: Launcher, tmp_path: Path
) -> None:
    """`provide` is told how many are wanted in all, and may be told so again and again."""
    with embed(SPEC, 1, shared=tmp_path, on=launcher) as (cluster, client):
        cluster.provide(0)
        for _ in range(3):
            cluster.provide(2)
        seen = next(status for status in client.watch() if len(status.workers) == 2)
    assert {worker.worker for worker in seen.workers} == {"worker-1", "worker-2"}


def test_a_port_that_is_taken_is_told_in_one_line(launcher: Launcher, tmp_path: Path) -> None:
    """The user can correct it, so the exit status is 2."""
    with create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        plan = LaunchPlan(ManagerOptions(shared=str(tmp_path), port=port), 1)
        with pytest.raises(LaunchError, match=f"port = {port}") as told, launcher(plan):
            pass
    assert told.value.exit_status == 2
