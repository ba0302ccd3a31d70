"""Containers that `--on compose` starts: they are replaced, and nothing of them stays.

What it promises as every launcher does is tested in `tests/cluster/launchers/test_contract.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from downpour.core.spec import Spec
from downpour.experiments.running.surroundings import Surroundings
from downpour.experiments.running.training import embed
from downpour.launchers import ComposeOptions, on_compose
from tests.cluster.docker.conftest import ROOT, docker

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
