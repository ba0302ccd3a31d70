"""Containers that `--on compose` starts: they are stopped, killed, replaced, and nothing stays."""

import os
import subprocess
from functools import partial
from pathlib import Path

import pytest

from downpour.base.states import BLAMELESS
from downpour.core.spec import Spec
from downpour.experiments.surroundings import Surroundings
from downpour.experiments.training import embed
from downpour.launchers import ComposeOptions, on_compose
from downpour.network.rpc.messages import Status
from tests.cluster.docker.conftest import (
    ROOT,
    Outcome,
    Project,
    Projects,
    docker,
    inspected_until,
    small_mnist,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_container_that_is_killed_is_replaced(
    compose_command: tuple[str, ...], image: str, tmp_path: Path
) -> None:
    """Another one has the worker's name; in the end neither is left, nor their network."""
    del compose_command
    on = on_compose(ComposeOptions(compose_file=str(ROOT / "docker/compose.yaml"), image=image))
    with embed(Spec(), 1, Surroundings(tmp_path, on=on)) as (cluster, client):
        first = next(s.workers for s in client.watch(check=cluster.check) if s.workers)[0]
        label = '{{index .Config.Labels "com.docker.compose.project"}}'
        ours = f"label=com.docker.compose.project={docker('inspect', '-f', label, first.hostname)}"
        assert docker("network", "ls", "--quiet", "--filter", ours)
        docker("kill", first.hostname)
        seen = (one for status in client.watch(check=cluster.check) for one in status.workers)
        again = next(one for one in seen if one.hostname != first.hostname)
        assert again.worker == first.worker
    assert docker("ps", "--all", "--quiet", "--filter", ours) == ""
    assert docker("network", "ls", "--quiet", "--filter", ours) == ""


def exit_statuses(containers: list[str]) -> set[str]:
    """What the containers' processes ended with; 137 is that of one that was killed."""
    return set(docker("inspect", "-f", "{{.State.ExitCode}}", *containers).split())


def test_a_stopped_process_says_goodbye(projects: Projects) -> None:
    """In the middle of a run, workers hand back what they train and leave; nobody is killed."""
    with projects() as project:
        project.up(workers=2)
        experiment = project.client.submit(small_mnist().to_toml())
        project.status_when(lambda s: all(worker.running for worker in s.workers), experiment)
        project.compose("stop", "worker")
        assert exit_statuses(project.containers("worker")) == {"0"}
        assert not project.client.status("", 0, 0.0).workers
        left = [fact for fact in project.record(experiment) if fact["kind"] == "worker-left"]
        assert [fact["reason"] for fact in left] == ["told to stop"] * 2
        project.compose("stop")
        assert exit_statuses(project.containers("manager")) == {"0"}


def test_a_mistake_is_not_repeated_for_ever(projects: Projects) -> None:
    """A manager that may not write to the volume says so in one line, a few times, and gives up."""
    with projects(DOWNPOUR_USER="1001:1001") as project:
        project.compose("up", "-d", "--no-build", "manager")
        form = "{{.State.Status}} {{.State.ExitCode}} {{.RestartCount}}"
        inspected_until(form, "exited 2 3", [project.manager])
        logged = subprocess.run(
            ["docker", "logs", project.manager], capture_output=True, text=True, check=True
        )
    lines = logged.stderr.splitlines()
    assert (len(lines), len(set(lines))) == (4, 1)
    assert lines[0].startswith("downpour: shared directory /shared: ")


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
