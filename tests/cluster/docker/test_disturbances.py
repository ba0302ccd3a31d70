"""Workers are killed, slowed down, cut off and added; the model does not notice."""

from __future__ import annotations

import os
from functools import partial

import pytest

from downpour.base.states import BLAMELESS
from downpour.network.rpc.messages import Status
from tests.cluster.docker.conftest import Outcome, Project, docker, small_mnist

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_killed_manager_costs_no_retry(cluster: Project, undisturbed: Outcome) -> None:
    """Its container is killed in every round and started again; the five workers stay."""
    experiment = cluster.client.submit(small_mnist().to_toml())
    for rounds in range(small_mnist().epochs):
        cluster.status_when(partial(_is_training, rounds), experiment)
        cluster.restart_manager()
    cluster.finished(experiment)
    assert cluster.model(experiment) == undisturbed.model
    failures = {fact.get("failure") for fact in cluster.record(experiment)} - {None}
    assert failures <= set(BLAMELESS)


def test_a_disturbed_run_ends_in_the_same_bytes(cluster: Project, undisturbed: Outcome) -> None:
    """One worker gets a twentieth of a core, one is killed, one is cut off and comes back."""
    slow, killed, cut_off, *_ = cluster.containers("worker")
    # Another policy may take each shard from the slow worker, and then none of its updates counts.
    experiment = cluster.client.submit(small_mnist().replace(policy="wait").to_toml())
    cluster.status_when(
        lambda s: s.experiment is not None and s.experiment.rounds_done == 1, experiment
    )
    docker("update", "--cpus", "0.05", slow)
    docker("kill", killed)
    docker("network", "disconnect", cluster.network, cut_off)
    cluster.status_when(lambda s: not {killed, cut_off} & _hosts(s), experiment)
    docker("network", "connect", cluster.network, cut_off)
    cluster.up(workers=6)
    live = _hosts(cluster.client.status("", 0, 0.0))
    assert {slow, cut_off} <= live
    cluster.status_when(lambda _: _has_updated(cluster, experiment, slow), experiment)
    docker("update", "--cpus", str(os.cpu_count()), slow)
    cluster.finished(experiment)
    assert cluster.model(experiment) == undisturbed.model


def _is_training(rounds: int, status: Status) -> bool:
    """Whether that many rounds are done, and the next one goes on."""
    shown = status.experiment
    assert shown is None or not shown.state.ended, "it ended before its manager could be killed"
    return shown is not None and shown.rounds_done >= rounds and bool(status.tasks)


def _hosts(status: Status) -> set[str]:
    """The containers of the workers, which are named for them."""
    return {worker.worker.rpartition("-")[0] for worker in status.workers}


def _has_updated(cluster: Project, experiment: str, container: str) -> bool:
    """Whether an update of this container counts, in a round since the disturbances."""
    return any(
        fact["kind"] == "updated" and fact["round"] > 0 and fact["worker"].startswith(container)
        for fact in cluster.record(experiment)
    )
