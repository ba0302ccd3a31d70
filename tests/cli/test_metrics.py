"""`--metrics-port` as a user types it, with a real manager and a real worker."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

COMMAND = [sys.executable, "-m", "downpour.cli"]
SERVING = re.compile(r"(?:manager|worker) at ([^\s,]+), ")
METRICS = re.compile(r"metrics at (http://127\.0\.0\.1:\d+/metrics)\n")


@pytest.mark.parametrize("command", ["manager", "worker"])
def test_a_port_that_cannot_be_had_is_named(
    refused: Callable[..., str], tmp_path: Path, command: str
) -> None:
    """Before a manager becomes the leader, and before a worker looks for one."""
    at = command, "--port", 0, "--shared", tmp_path, "--metrics-port"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert refused(*at, port) == f"metrics_port = {port}: is in use on 127.0.0.1"
    assert refused(*at, 99999).startswith("metrics_port = 99999: a port from 0 to 65535")
    assert not list((tmp_path / "terms").glob("*"))


@contextmanager
def started(*words: str) -> Iterator[tuple[str, str]]:
    """Start a command that serves; gives its address and the URL of its metrics."""
    with subprocess.Popen([*COMMAND, *words], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            said, told = SERVING.match(process.stderr.readline()), process.stderr.readline()
            metrics = METRICS.fullmatch(told)
            assert said
            assert metrics, told
            yield said[1], metrics[1]
        finally:
            process.kill()


def names(url: str) -> set[str]:
    """Fetch; return the names of our own metrics, as the page of docs has them."""
    with urlopen(url, timeout=10) as answer:  # noqa: S310
        told = re.findall(r"^# TYPE (downpour_\w+) ", answer.read().decode(), re.MULTILINE)
    return set(told)


def scraped(url: str) -> dict[tuple[str, ...], float]:
    """Fetch and parse; returns each sample by its name and the values of its labels."""
    with urlopen(url, timeout=10) as answer:  # noqa: S310
        families = list(text_string_to_metric_families(answer.read().decode()))
    samples = (sample for family in families for sample in family.samples)
    return {(sample.name, *sample.labels.values()): sample.value for sample in samples}


@pytest.mark.slow
def test_a_cluster_that_trains_can_be_watched(tmp_path: Path) -> None:
    """Both say where; manager and worker agree about what was done."""
    common = "--shared", str(tmp_path), "--metrics-port", "0"
    with (
        started("manager", "--port", "0", *common) as (manager, its),
        started("worker", "--manager", manager, *common) as (_, theirs),
    ):
        submit = ["submit", "--manager", manager, "--watch", "--shards", "2", "--epochs", "3"]
        subprocess.run([*COMMAND, *submit], capture_output=True, check=True)
        of_manager, of_worker = scraped(its), scraped(theirs)
        told = names(its) | names(theirs)
    assert of_manager["downpour_experiments", "finished"] == 1
    assert of_manager["downpour_rounds_total",] == 3
    assert of_manager["downpour_attempts_ended_total", "counted"] == 6
    assert of_worker["downpour_worker_tasks_total", "trained"] == 6
    assert of_worker["downpour_worker_steps_total",] > 0
    assert of_worker["downpour_worker_samples_per_second",] > 0
    assert of_worker["downpour_worker_train_seconds_count",] == 6
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "monitoring.md").read_text("utf-8")
    assert set(re.findall(r"`(downpour_\w+)`", page)) == told
