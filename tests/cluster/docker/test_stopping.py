"""Containers end when they are told to, and stay ended where trying again would not help."""

from __future__ import annotations

import subprocess

import pytest

from tests.cluster.docker.conftest import Projects, docker, inspected_until, small_mnist

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


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
