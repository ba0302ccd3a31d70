"""When users are told that an experiment waits: after a while, once, and with a reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from downpour.base.states import ExperimentEvent, ExperimentState, TaskState, WorkerState
from downpour.cluster.manager.status import WaitingWatch, why_waiting
from downpour.network.rpc.messages import ExperimentSummary, Status, TaskStatus, WorkerStatus

WORKER = WorkerStatus(worker="w", address="127.0.0.1:1", state=WorkerState.IDLE, tasks_done=0)
EXPERIMENT = ExperimentSummary(
    experiment="e-1", name="e", state=ExperimentState.RUNNING, rounds_done=0, rounds_total=4
)
PENDING = TaskStatus(
    shard=0, state=TaskState.PENDING, steps_done=0, steps_total=0, elapsed_seconds=0.0
)
RUNNING, PUBLISHED = (
    replace(PENDING, state=state) for state in (TaskState.RUNNING, TaskState.PUBLISHED)
)
ALONE = Status(change=1, experiment=EXPERIMENT, tasks=(PENDING,))
BUSY = replace(ALONE, workers=(WORKER,), tasks=(PENDING, RUNNING))


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (Status(change=1), "nothing to do"),
        (ALONE, "no worker is there"),
        (replace(ALONE, workers=(WORKER,)), "no worker has taken a task"),
        (BUSY, ""),
        (replace(ALONE, tasks=(PUBLISHED,)), ""),
        (replace(ALONE, experiment=replace(EXPERIMENT, state=ExperimentState.PREPARING)), ""),
        (replace(ALONE, experiment=replace(EXPERIMENT, reason="held up: gone")), "held up: gone"),
        (
            replace(BUSY, experiment=replace(EXPERIMENT, state=ExperimentState.FINISHED)),
            "nothing to do",
        ),
    ],
)
def test_the_cause_of_waiting_is_named(status: Status, why: str) -> None:
    """Nothing, while a task runs, updates are added, or data are prepared."""
    assert why_waiting(status) == why


def test_it_is_told_once_for_each_time() -> None:
    """Not before the limit, not twice, and again after something was trained in between."""
    watch = WaitingWatch(seconds=60.0)
    times = [0.0, 59.0, 61.0, 500.0]
    told = [watch.take(ALONE, at) for at in times]
    event = ExperimentEvent(
        kind="waiting",
        experiment="e-1",
        name="e",
        state=ExperimentState.RUNNING,
        reason="no worker is there, for 61 s",
    )
    assert told == [None, None, event, None]
    assert watch.take(BUSY, 501.0) is None
    assert [watch.take(ALONE, 600.0), watch.take(ALONE, 659.0)] == [None, None]
    assert watch.take(ALONE, 660.0) is not None


def test_a_manager_without_work_waits_too() -> None:
    """It names no experiment: that which has ended last does not wait."""
    watch = WaitingWatch(seconds=10.0)
    ended = replace(EXPERIMENT, state=ExperimentState.FINISHED)
    assert watch.take(Status(change=1, experiment=ended), 0.0) is None
    event = watch.take(Status(change=1), 10.0)
    assert event == ExperimentEvent(kind="waiting", reason="nothing to do, for 10 s")
