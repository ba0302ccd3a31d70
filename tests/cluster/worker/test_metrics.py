"""What a worker tells Prometheus of the tasks that pass."""

from __future__ import annotations

from threading import Event, Thread
from typing import Any

import pytest
import torch

from downpour.base.errors import NonFinite
from downpour.base.values import PublishedFile, Snapshot, Update
from downpour.cluster.worker.attempt import HandOverStop, TaskCancelled, TaskControl
from downpour.cluster.worker.process import WorkerMetrics
from downpour.cluster.worker.task_runner import TaskRunner
from downpour.network.rpc.messages import TaskMessage
from tests.specs import plain_update

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
