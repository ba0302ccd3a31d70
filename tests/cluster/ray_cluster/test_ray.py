"""Workers as actors of a real Ray cluster."""

from pathlib import Path
from socket import create_server
from threading import Event

import psutil
import pytest

import downpour
from downpour.base.errors import LaunchError, SpecError
from downpour.cluster.launchers import kind_of
from downpour.cluster.launchers.ray import on_ray
from downpour.cluster.options import ManagerOptions
from downpour.experiments.surroundings import Surroundings
from downpour.experiments.training import embed
from downpour.launchers import LaunchPlan, RayOptions
from downpour.network.rpc.messages import Status
from tests.cluster.ray_cluster.conftest import NEVER, SOON, Nodes
from tests.specs import model_of

pytest.importorskip("ray", reason="Ray is not installed")
SPEC = downpour.Spec(shards=2, epochs=15, batch_size=16, learning_rate=0.05)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("nodes", [NEVER], indirect=True, ids=["never"])
def test_a_node_of_ray_dies_and_the_model_is_the_same(nodes: Nodes, tmp_path: Path) -> None:
    """Its only worker is replaced on the other node, though Ray never learns of the death."""
    usual = downpour.run(SPEC, workers=2, shared=tmp_path, on="inline", progress=False)
    killed: list[int] = []

    def look(status: Status) -> None:
        if not killed and any(task.steps_done for task in status.tasks):
            killed.append(status.workers[0].pid)
            nodes.kill_second()

    on = on_ray(RayOptions(ray_address=nodes.address))
    result = downpour.run(SPEC, workers=1, shared=tmp_path, on=on, on_status=look)
    assert killed
    assert model_of(result) == model_of(usual)
    psutil.wait_procs(nodes.workers, timeout=30)
    assert not nodes.workers


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("nodes", [SOON], indirect=True, ids=["soon"])
def test_nobody_else_replaces_a_worker_once_ray_knows(nodes: Nodes, tmp_path: Path) -> None:
    """When Ray has learned of the death, too, there is one worker, and it is no third one."""
    on = on_ray(RayOptions(ray_address=nodes.address))
    with embed(SPEC, 1, Surroundings(tmp_path, on=on)) as (cluster, client):
        first = next(status for status in client.watch() if status.workers).workers[0]
        nodes.kill_second()
        watched = client.watch(check=cluster.check)
        replaced = next(s.workers for s in watched if {one.pid for one in s.workers} - {first.pid})
        while nodes.alive == 2:
            cluster.check()
            Event().wait(0.2)
        cluster.check()
        left = client.status().workers
        assert [(one.worker, one.pid) for one in left] == [(first.worker, replaced[0].pid)]
    assert not nodes.workers


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_request_beyond_rays_resources_is_refused(nodes: Nodes, tmp_path: Path) -> None:
    """Nothing waits for processors that nobody has promised, and nothing stays reserved."""
    for _ in range(2):
        with pytest.raises(LaunchError) as told:
            downpour.run(
                SPEC,
                workers=9,
                shared=tmp_path,
                # On a busy machine Ray takes seconds to find all five.
                on=on_ray(RayOptions(ray_address=nodes.address, ray_wait_seconds=15.0)),
            )
        assert str(told.value) == "9 workers need 9 CPU; Ray has room for 5 of them"
        assert told.value.exit_status == 2


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_workers_run_on_the_nodes_whose_label_was_asked_for(nodes: Nodes, tmp_path: Path) -> None:
    """And have it themselves, so that what the spec needs is met; no node may lack it."""
    options = RayOptions(
        ray_address=nodes.address, place=("rack=first",), cpus_per_worker=0.5, ray_wait_seconds=15.0
    )
    spec = SPEC.replace(needs=["rack=first"])
    with embed(spec, 3, Surroundings(tmp_path, on=on_ray(options))) as (_, client):
        workers = next(status for status in client.watch() if len(status.workers) == 3).workers
        assert {one.labels for one in workers} == {("rack=first",)}
        # The other node is the one that Ray chooses first.
        assert len(nodes.workers) == 3
    elsewhere = RayOptions(ray_address=nodes.address, place=("rack=none",))
    with pytest.raises(LaunchError, match="1 workers need 1 CPU on nodes with rack=none; Ray has"):
        downpour.run(SPEC, workers=1, shared=tmp_path, on=on_ray(elsewhere))


def test_an_address_where_nothing_listens_is_told_at_once(tmp_path: Path) -> None:
    """Ray itself would try for minutes."""
    with create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    plan = LaunchPlan(ManagerOptions(shared=str(tmp_path), port=0), 1)
    with pytest.raises(LaunchError, match=f"ray_address = '{address}': .*refused") as told:
        on_ray(RayOptions(ray_address=address))(plan).__enter__()
    assert told.value.exit_status == 2


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "xpu"])
def test_a_worker_on_a_card_needs_an_accelerator_of_ray(tmp_path: Path, device: str) -> None:
    """Ray hides the accelerators that were not asked for."""
    plan = LaunchPlan(ManagerOptions(shared=str(tmp_path), port=0), 1, device=device)
    with pytest.raises(
        LaunchError, match=rf"gpus_per_worker = 0\.0: must be above 0 with device = {device}$"
    ):
        on_ray()(plan).__enter__()


@pytest.mark.parametrize("name", ["cpus_per_worker", "gpus_per_worker", "ray_wait_seconds"])
def test_a_number_below_zero_is_refused(name: str) -> None:
    """In one line that names the option."""
    with pytest.raises(SpecError, match=rf"{name} = -1\.0: must be a number, at least 0"):
        kind_of("ray").launcher({name: -1.0})
