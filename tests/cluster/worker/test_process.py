"""The worker as a process: what it is told, what it says of its machine, and its metrics."""

import os
import subprocess
import sys
import time
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import torch

from downpour.base.errors import NonFinite, SpecError
from downpour.base.values import PublishedFile, Snapshot, Update
from downpour.cluster.options import ONE_HASH_SEED, training_environment
from downpour.cluster.worker.attempt import HandOverStop, TaskCancelled, TaskControl
from downpour.cluster.worker.process import (
    WorkerMetrics,
    _get_ready,
    advertised,
    listening_host,
)
from downpour.cluster.worker.task_runner import TaskRunner
from downpour.host.machine import SystemSampler
from downpour.host.process import PACKAGES
from downpour.network.rpc import Trust, parse_address
from downpour.network.rpc.messages import TaskMessage
from tests.specs import plain_update


@pytest.mark.parametrize(
    ("manager", "host"),
    [
        ("localhost:1", {"127.0.0.1"}),
        ("[::1]:1", {"::1"}),
        ("10.0.0.5:1", {"::", "0.0.0.0"}),
        ("[fd00::5]:1", {"::"}),
    ],
)
def test_a_worker_listens_where_its_manager_can_call(manager: str, host: set[str]) -> None:
    """On loopback where the manager is there, so that nobody else reaches it; else everywhere."""
    assert listening_host(parse_address(manager), Trust()) in host


@pytest.mark.parametrize(
    ("asked", "listening", "told"),
    [
        ("", "::", ("", 7)),
        ("", "0.0.0.0", ("", 7)),
        ("", "127.0.0.1", ("127.0.0.1", 7)),
        ("here", "::", ("here", 7)),
        ("here:8", "::", ("here", 8)),
        ("[fd00::5]", "::", ("fd00::5", 7)),
        ("[fd00::5]:8", "::", ("fd00::5", 8)),
    ],
)
def test_the_advertised_address(asked: str, listening: str, told: tuple[str, int]) -> None:
    """What it was told to, else where it listens, else (an empty host) what the manager sees."""
    assert advertised(asked, listening, 7) == told


def test_a_malformed_address_is_refused() -> None:
    """The line names the option."""
    with pytest.raises(SpecError, match="advertise = 'a:b:c': an address is HOST"):
        advertised("a:b:c", "::", 7)


REUSE = """
import resource
import numpy as np
from downpour.cluster.options import keep_memory
keep_memory()
def faults():
    for _ in range(20):
        np.ones(1 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
faults()
print(faults() - faults())
"""


def test_threads_soon_sleep() -> None:
    """The variables name the spec's threads, and a short wait before they sleep."""
    variables = training_environment(3)
    assert variables["OMP_NUM_THREADS"] == "3"
    assert (variables["OMP_WAIT_POLICY"], variables["GOMP_SPINCOUNT"]) == ("PASSIVE", "1000")


def test_a_worker_on_an_accelerator_gets_ready_while_it_is_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork server tells it what to import; here `meta` stands for the accelerator."""
    monkeypatch.setenv(PACKAGES, "missing_everywhere yarn_ahead:held")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "yarn_ahead.py").write_text("held = 1")
    _get_ready("meta")
    assert "yarn_ahead" in sys.modules


def test_launched_processes_hash_alike() -> None:
    """Two of them put the same text into the same bucket, and so do those of the image."""
    words = [sys.executable, "-c", "print(hash('word'))"]
    environment = {**os.environ, **training_environment(1)}
    hashes = {subprocess.check_output(words, env=environment) for _ in range(2)}
    assert len(hashes) == 1
    image = (Path(__file__).parents[3] / "docker/Dockerfile").read_text(encoding="utf-8")
    [(name, seed)] = ONE_HASH_SEED.items()
    assert f" {name}={seed} " in image


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc can be told")
def test_memory_that_was_freed_is_used_again() -> None:
    """After the first rounds, large arrays come without faulting pages in anew."""
    shown = subprocess.run(
        [sys.executable, "-c", REUSE], capture_output=True, text=True, check=True
    )
    pages = 20 * (8 << 20) // 4096
    assert abs(int(shown.stdout)) < pages / 20


def test_shares_are_shares() -> None:
    """Whatever happens between two samples, shares stay within 0 and 1."""
    sampler = SystemSampler()
    for _ in range(3):
        state, _ = sampler.sample()
        for share in (state.cpu_others, state.memory_used, state.io_wait):
            assert 0.0 <= share <= 1.0
        assert state.load_average >= 0.0


def test_a_process_tells_its_resources() -> None:
    """Processor time since the look before, as a share of one core; memory; threads."""
    sampler = SystemSampler()
    began = time.process_time()
    while time.process_time() < began + 0.05:
        pass
    _, busy = sampler.sample()
    assert busy.cpu_share > 0
    assert busy.memory_bytes > 1_000_000
    release = Event()
    thread = Thread(target=release.wait)
    thread.start()
    assert sampler.sample()[1].threads == busy.threads + 1
    release.set()
    thread.join()


FILE = PublishedFile(name="some-file", size_bytes=1, checksum="0" * 32)
SNAPSHOT = Snapshot(file=FILE, steps_done=1, steps_total=2)


def told(metrics: WorkerMetrics) -> dict[tuple[str, ...], float]:
    """Return each sample by its name and the values of its labels."""
    samples = (sample for family in metrics() for sample in family.samples)
    return {(sample.name, *sample.labels.values()): sample.value for sample in samples}


def update(steps: int, train_seconds: float) -> Update:
    """Make an update of ten samples a step."""
    seconds = {"load_seconds": 0.25, "train_seconds": train_seconds, "publish_seconds": 0.125}
    return plain_update(FILE, samples=10 * steps, steps=steps, **seconds)


def test_a_finished_task_is_counted(trainable: Any) -> None:
    """One that was really trained: steps, samples and seconds are those of its update."""
    threads = torch.get_num_threads()
    metrics = WorkerMetrics(TaskRunner(trainable.shared, "cpu").run)
    made = metrics.run(trainable.task, TaskControl(trainable.task.id))
    torch.set_num_threads(threads)
    found = told(metrics)
    assert found["downpour_worker_steps_total",] == made.steps
    assert found["downpour_worker_samples_total",] == made.samples
    assert found["downpour_worker_train_seconds_sum",] == made.train_seconds
    assert found["downpour_worker_load_seconds_sum",] == made.load_seconds
    assert found["downpour_worker_publish_seconds_count",] == 1
    assert found["downpour_worker_tasks_total", "trained"] == 1
    assert found["downpour_worker_busy",] == found["downpour_worker_task_done_ratio",] == 0
    for share in ("cpu_others", "memory_used", "io_wait"):
        assert 0 <= found[f"downpour_worker_{share}_ratio",] <= 1


def test_only_the_workers_own_part_of_a_task_counts(trainable: Any) -> None:
    """What a snapshot brought along was somebody else's work; speed is measured without it."""

    def going_on(_: TaskMessage, control: TaskControl) -> Update:
        control.steps_before, control.steps_done, control.steps_total = 6, 8, 8
        return update(8, train_seconds=0.5)

    metrics = WorkerMetrics(going_on)
    metrics.run(trainable.task, TaskControl(trainable.task.id))
    found = told(metrics)
    assert found["downpour_worker_steps_total",] == 2
    assert found["downpour_worker_samples_total",] == 20
    assert found["downpour_worker_samples_per_second",] == 40


def test_a_task_under_way_shows_how_far_it_is(trainable: Any) -> None:
    """Its steps count as they are made, and are counted once."""
    scraped, midway = Event(), Event()

    def halfway(_: TaskMessage, control: TaskControl) -> Update:
        control.steps_done, control.steps_total = 2, 8
        midway.set()
        scraped.wait()
        control.steps_done = 8
        return update(8, train_seconds=1.0)

    metrics = WorkerMetrics(halfway)
    control = TaskControl(trainable.task.id)
    thread = Thread(target=metrics.run, args=(trainable.task, control))
    thread.start()
    midway.wait()
    found = told(metrics)
    scraped.set()
    thread.join()
    assert found["downpour_worker_busy",] == 1
    assert found["downpour_worker_task_done_ratio",] == 0.25
    assert found["downpour_worker_steps_total",] == 2
    assert told(metrics)["downpour_worker_steps_total",] == 8


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (TaskCancelled(), "cancelled"),
        (HandOverStop(SNAPSHOT), "handed_over"),
        (NonFinite("loss"), "failed"),
        (ValueError("surprise"), "failed"),
    ],
)
def test_a_task_that_came_to_nothing_is_counted_by_its_end(
    trainable: Any, error: Exception, end: str
) -> None:
    """What ended it goes on to whoever asked for it."""

    def ending(_: TaskMessage, control: TaskControl) -> Update:
        control.steps_done = 3
        raise error

    metrics = WorkerMetrics(ending)
    with pytest.raises(type(error)):
        metrics.run(trainable.task, TaskControl(trainable.task.id))
    found = told(metrics)
    ends = {key[1]: n for key, n in found.items() if key[0] == "downpour_worker_tasks_total" and n}
    assert ends == {end: 1}
    assert found["downpour_worker_steps_total",] == 3
    assert found["downpour_worker_train_seconds_count",] == 0
