"""Workers as actors of a real Ray cluster."""

from __future__ import annotations

from pathlib import Path
from socket import create_server

import psutil
import pytest

import downpour
from downpour.cli import ray_options
from downpour.errors import LaunchError, SpecError
from downpour.launchers import LaunchPlan, RayOptions, on_ray
from downpour.manager.options import ManagerOptions
from downpour.rpc.messages import Status
from tests.ray_cluster.conftest import Nodes

SPEC = downpour.Spec(shards=2, epochs=15, batch_size=16, learning_rate=0.05)


def model_of(result: downpour.Result) -> bytes:
    """Return the bytes of the final model."""
    assert result.model_file is not None
    return result.model_file.read_bytes()


def workers_here() -> list[psutil.Process]:
    """Return the workers' processes, which are children of Ray's."""
    found = [one for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"]]
    return [one for one in found if one.info["cmdline"][1:4] == ["-m", "downpour.cli", "worker"]]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_node_of_ray_dies_and_the_model_is_the_same(nodes: Nodes, tmp_path: Path) -> None:
    """The worker of the lost node is started again on the other; at the end none is left."""
    usual = downpour.run(SPEC, workers=2, shared=tmp_path, on="inline", progress=False)
    killed: list[int] = []

    def look(status: Status) -> None:
        done = [task.steps_done for task in status.tasks]
        if not killed and len(status.workers) == 2 and len(done) == 2 and all(done):
            killed.append(len(workers_here()))
            nodes.kill_second()

    on = on_ray(RayOptions(ray_address=nodes.address))
    result = downpour.run(SPEC, workers=2, shared=tmp_path, on=on, on_status=look)
    assert killed == [2]
    assert model_of(result) == model_of(usual)
    psutil.wait_procs(workers_here(), timeout=30)
    assert not workers_here()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_more_than_ray_has_is_refused_with_what_is_free(nodes: Nodes, tmp_path: Path) -> None:
    """Nothing waits for processors that nobody has promised, and nothing stays reserved."""
    for _ in range(2):
        with pytest.raises(LaunchError) as told:
            downpour.run(
                SPEC,
                workers=5,
                shared=tmp_path,
                on=on_ray(RayOptions(ray_address=nodes.address, ray_wait_seconds=1.0)),
            )
        assert str(told.value) == "5 workers need 5 CPU; Ray has 3 CPU free"
        assert told.value.exit_status == 2


def test_an_address_where_nothing_listens_is_told_at_once(tmp_path: Path) -> None:
    """Ray itself would try for minutes."""
    with create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    plan = LaunchPlan(ManagerOptions(shared=str(tmp_path), port=0), 1)
    with pytest.raises(LaunchError, match=f"ray_address = '{address}': .*refused") as told:
        on_ray(RayOptions(ray_address=address))(plan).__enter__()
    assert told.value.exit_status == 2


def test_a_worker_on_cuda_needs_an_accelerator_of_ray(tmp_path: Path) -> None:
    """Ray hides the accelerators that were not asked for."""
    plan = LaunchPlan(ManagerOptions(shared=str(tmp_path), port=0), 1, device="cuda")
    with pytest.raises(LaunchError, match=r"gpus_per_worker = 0\.0: must be more"):
        on_ray()(plan).__enter__()


@pytest.mark.parametrize("name", ["cpus_per_worker", "gpus_per_worker", "ray_wait_seconds"])
def test_a_number_below_zero_is_refused(name: str) -> None:
    """In one line that names the option."""
    with pytest.raises(SpecError, match=rf"{name} = -1\.0: must be a number, at least 0"):
        ray_options.launcher({name: -1.0})
