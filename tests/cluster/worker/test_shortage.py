"""A worker whose accelerator lacks memory, which a fake stands for, trains the task again."""

from collections.abc import Callable

import pytest
import torch

from downpour.base.errors import OutOfMemory
from downpour.base.values import Update
from downpour.cluster.worker import task_runner
from downpour.cluster.worker.attempt import TaskControl
from downpour.cluster.worker.task_runner import TaskRunner
from downpour.learning.training import step as shortage
from downpour.learning.training.loop import ShardTraining
from downpour.learning.training.step import Shortage
from tests.cluster.worker.conftest import Trainable

Run = Callable[[int], Update]


@pytest.fixture
def short(trainable: Trainable, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Train a task of seven steps, whose fifth lacks memory so many times."""
    released: list[str] = []
    monkeypatch.setattr(task_runner, "Shortage", lambda _: Shortage("cuda"))
    monkeypatch.setattr(shortage, "release", released.append)
    step = ShardTraining._step

    def run(times: int) -> Update:
        left = [times]

        def lacking(training: ShardTraining) -> None:
            if training.steps_done == 4 and left[0]:
                left[0] -= 1
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            step(training)

        monkeypatch.setattr(ShardTraining, "_step", lacking)
        control = TaskControl(trainable.task.id)
        released.clear()
        update = TaskRunner(trainable.shared, "cpu").run(trainable.task, control)
        assert released == ["cuda"] * times
        assert control.steps_done == control.steps_total == 7
        return update

    return run


@pytest.mark.slow
def test_a_step_that_lacked_memory_changes_no_byte(short: Run) -> None:
    """Not with one more try, nor with two; the update tells how many there were."""
    updates = [short(times) for times in (0, 1, 2)]
    assert [one.shortages for one in updates] == [0, 1, 2]
    assert [one.steps for one in updates] == [7, 7, 7]
    assert len({one.file.checksum for one in updates}) == 1
    assert len({one.loss for one in updates}) == 1


def test_a_step_that_never_fits_fails_with_a_remedy(short: Run) -> None:
    """After the last try."""
    line = r"CUDA out of memory. Tried to allocate 2.00 GiB; .* accumulate = 2 for smaller parts"
    with pytest.raises(OutOfMemory, match=line):
        short(3)


def test_steps_that_are_trained_again_are_no_progress(
    trainable: Trainable, short: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a manager hears never goes back, so no speed is negative."""
    told: list[int] = []
    advance = TaskControl.advance

    def listening(control: TaskControl, steps_done: int) -> None:
        told.append(steps_done)
        advance(control, steps_done)

    monkeypatch.setattr(TaskControl, "advance", listening)
    assert short(1).shortages == 1
    assert told == sorted(told)
    assert set(told) == set(range(1, 8))
    assert trainable.task.snapshot is None
