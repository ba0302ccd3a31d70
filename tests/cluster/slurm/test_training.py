"""Experiments on three nodes of a real Slurm, with the bytes that they have everywhere."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import downpour
from downpour.base.errors import ProtocolError
from downpour.core.spec import Spec
from downpour.experiments.running.surroundings import Surroundings
from downpour.experiments.running.training import embed
from downpour.launchers import SlurmOptions, on_slurm
from downpour.network.rpc.messages import Status
from tests.cluster.slurm.lab import NODES, Lab
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
OPTIONS = SlurmOptions(partition="all", time="5", sbatch=("--exclusive",))
SPEC = Spec(shards=3, epochs=10, batch_size=32, learning_rate=0.05)


def test_a_run_goes_on_when_slurm_takes_workers_away(slurm: Lab, tmp_path: Path) -> None:
    """A node is lost, and another worker gets the signal that Slurm sends before a time limit.

    Others do their shards meanwhile, the bytes are those of a run here, and both are replaced: the
    one by another job, the other by Slurm's own requeueing.
    """
    with embed(SPEC, 3, Surroundings(tmp_path / "there", on=on_slurm(OPTIONS))) as (
        cluster,
        client,
    ):

        def reach(holds: Callable[[Status], bool]) -> None:
            def look() -> bool:
                cluster.check()
                with suppress(ProtocolError):  # this machine is busy
                    return holds(client.status())
                return False

            until(look)

        reach(lambda status: len(status.workers) == 3)
        at = {node: task for task, _, node in slurm.tasks()}
        assert set(at) == set(NODES)
        experiment = client.submit(SPEC)
        reach(lambda status: rounds(status) >= 2)
        slurm.lose_node("n3")
        reach(lambda status: rounds(status) >= 5)
        slurm.run("scancel", "--batch", "--signal=USR2", at["n1"])
        there = client.wait(experiment, check=cluster.check)
        slurm.start_node("n3")
        reach(lambda status: "worker-1" in {one.worker for one in status.workers})
        assert at["n1"] not in {task for task, _, _ in slurm.tasks()}
        until(lambda: slurm.restarts(at["n3"]) == 1)
    assert slurm.tasks() == []
    here = downpour.run(SPEC, workers=3, shared=tmp_path / "here", on="inline", progress=False)
    assert there.model_file is not None
    assert here.model_file is not None
    assert there.model_file.read_bytes() == here.model_file.read_bytes()


def rounds(status: Status) -> int:
    """Return how many rounds are done of the experiment that is active, if one is."""
    return status.experiment.rounds_done if status.experiment is not None else 0
