"""What holds for all tests: how long an example takes decides nothing, for machines are noisy.

Several processes may run them (`pytest -n`), each with folders and ports of its own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Before torch is imported: with as many processes as cores, each with as many threads, threads spin
# while they wait for one another. What torch computes with is in the specs.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile(
    "untimed",
    settings.get_profile("ci" if os.environ.get("CI") else "default"),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("untimed")


_DAEMONS = {"docker", "kubernetes", "launchers", "nfs", "ray_cluster", "slurm", "ssh"}
"""Folders whose tests start a daemon that a machine has once."""


@pytest.hookimpl(tryfirst=True)  # before that of pytest-xdist, which reads the marks
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Group tests for `--dist loadgroup` by folder: one process makes what a session shares."""
    for item in items:
        folder = item.path.relative_to(Path(__file__).parent).parts[0]
        item.add_marker(pytest.mark.xdist_group("daemons" if folder in _DAEMONS else folder))


def pytest_configure(config: pytest.Config) -> None:
    """Give a process's temporary folder a short name: long paths are cut in what users read."""
    if given := getattr(config, "workerinput", None):
        folder, process = config.option.basetemp, given["workerid"]
        config.option.basetemp = folder.replace(f"popen-{process}", process.removeprefix("gw"))
