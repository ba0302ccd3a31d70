"""Workers are killed, slowed down, cut off and added; the model does not notice."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial

import pytest

from downpour.base.states import BLAMELESS
from downpour.network.rpc.messages import Status
from tests.cluster.docker.conftest import Outcome, Project, Projects, docker, small_mnist

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def project(projects: Projects) -> Iterator[Project]:
    """A manager and five workers of this file's own; containers take half a minute to start."""
    with projects() as made:
        made.up(workers=5)
        yield made


def test_a_killed_manager_costs_no_retry(project: Project, undisturbed: Outcome) -> None:
    """Its container is killed in every round and started again; the five workers stay."""
    experiment = project.client.submit(small_mnist().to_toml())
    for rounds in range(small_mnist().epochs):
        project.status_when(partial(_is_training, rounds), experiment)
        project.restart_manager()
    project.finished(experiment)
    assert project.model(experiment) == undisturbed.model
    failures = {fact.get("failure") for fact in project.record(experiment)} - {None}
    assert failures <= set(BLAMELESS)


def test_a_disturbed_run_ends_in_the_same_bytes(project: Project, undisturbed: Outcome) -> None:
    """One worker gets a twentieth of a core, one is killed, one is cut off and comes back."""
    slow, killed, cut_off, *_ = project.containers("worker")
    experiment = project.client.submit(small_mnist().to_toml())
    project.status_when(
        lambda s: s.experiment is not None and s.experiment.rounds_done == 1, experiment
    )
    docker("update", "--cpus", "0.05", slow)
    docker("kill", killed)
    docker("network", "disconnect", project.network, cut_off)
    project.status_when(lambda s: not {killed, cut_off} & _hosts(s), experiment)
    docker("network", "connect", project.network, cut_off)
    project.up(workers=6)
    live = _hosts(project.client.status("", 0, 0.0))
    assert {slow, cut_off} <= live
    project.status_when(lambda _: _has_updated(project, experiment, slow), experiment)
    docker("update", "--cpus", str(os.cpu_count()), slow)
    project.finished(experiment)
    assert project.model(experiment) == undisturbed.model


def _is_training(rounds: int, status: Status) -> bool:
    """Whether that many rounds are done, and the next one goes on."""
    shown = status.experiment
    assert shown is None or not shown.state.ended, "it ended before its manager could be killed"
    return shown is not None and shown.rounds_done >= rounds and bool(status.tasks)


def _hosts(status: Status) -> set[str]:
    """The containers of the workers, which are named for them."""
    return {worker.worker.rpartition("-")[0] for worker in status.workers}


def _has_updated(project: Project, experiment: str, container: str) -> bool:
    """Whether an update of this container counts, in a round since the disturbances."""
    return any(
        fact["kind"] == "updated" and fact["round"] > 0 and fact["worker"].startswith(container)
        for fact in project.record(experiment)
    )
