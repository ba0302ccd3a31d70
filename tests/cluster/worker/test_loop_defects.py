"""A worker that trains real tasks shows each defect that its step loop may have.

One of them is planted in simulated workers too (`tests/downpour_lab/trials/test_search.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from downpour.cluster.worker.attempt import HandOverStop, TaskCancelled, TaskControl
from downpour.cluster.worker.task_runner import TaskRunner
from downpour.core.node.attempt import HeldAttempt, StepLoop
from tests.core.node import loop_defects

if TYPE_CHECKING:
    from tests.cluster.worker.conftest import Trainable

Ask = Callable[[HeldAttempt], None]


@dataclass(slots=True, eq=False)
class _Asked(TaskControl):
    """Is asked for something while it makes its first step."""

    ask: Ask = field(kw_only=True)

    def advance(self, steps_done: int) -> None:
        """Ask before the step has ended."""
        if steps_done == 1:
            self.ask(self)
        TaskControl.advance(self, steps_done)


def _end(trainable: Trainable, loop: type[StepLoop], ask: Ask) -> str:
    """Train a task, ask for something during its first step; return how it ends."""
    return _trained(trainable, loop, _Asked(trainable.task.id, ask=ask))


def _trained(trainable: Trainable, loop: type[StepLoop], control: TaskControl) -> str:
    try:
        update = TaskRunner(trainable.shared, "cpu", loop).run(trainable.task, control)
    except TaskCancelled:
        return "cancelled"
    except HandOverStop as stopped:
        return f"handed over after {stopped.snapshot.steps_done}"
    return f"trained {update.steps} of {control.steps_total}"


def a_cancelled_attempt_stops(trainable: Trainable, loop: type[StepLoop]) -> bool:
    """At its next step."""
    return _end(trainable, loop, HeldAttempt.stop) == "cancelled"


def what_is_asked_for_is_handed_over(trainable: Trainable, loop: type[StepLoop]) -> bool:
    """At its next step."""
    return _end(trainable, loop, HeldAttempt.save_and_stop) == "handed over after 1"


def a_leaving_worker_saves_its_steps(trainable: Trainable, loop: type[StepLoop]) -> bool:
    """And does not count as one whose attempt is not wanted."""
    return _end(trainable, loop, HeldAttempt.save_or_stop) == "handed over after 1"


def a_snapshot_is_published_while_it_trains(trainable: Trainable, loop: type[StepLoop]) -> bool:
    """It is due at every step in this experiment."""
    seen: list[object] = []

    class Control(TaskControl):
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if name == "snapshot":
                seen.append(value)

    _trained(trainable, loop, Control(trainable.task.id))
    return any(seen)


def no_snapshot_is_left_over(trainable: Trainable, loop: type[StepLoop]) -> bool:
    """The manager has heard of none, so it removes none."""
    store = trainable.shared.store(trainable.task.id.experiment)
    before = set(store.list())
    _trained(trainable, loop, TaskControl(trainable.task.id))
    return not any(name.startswith("snapshot-") for name in set(store.list()) - before)


def all_steps_are_made(trainable: Trainable, loop: type[StepLoop]) -> bool:
    """The update is that of the whole shard."""
    return _trained(trainable, loop, TaskControl(trainable.task.id)) == "trained 7 of 7"


STORIES: dict[type[StepLoop], Callable[[Trainable, type[StepLoop]], bool]] = {
    loop_defects.NeverStops: a_cancelled_attempt_stops,
    loop_defects.NeverHandsOver: what_is_asked_for_is_handed_over,
    loop_defects.StopsWhatItShouldSave: a_leaving_worker_saves_its_steps,
    loop_defects.SavesWhatIsCancelled: a_cancelled_attempt_stops,
    loop_defects.NeverSaves: a_snapshot_is_published_while_it_trains,
    loop_defects.SavesBeforeItWasHeard: no_snapshot_is_left_over,
    loop_defects.FinishesEarly: all_steps_are_made,
}


@pytest.mark.parametrize("defect", loop_defects.DEFECTS)
def test_a_defect_of_the_loop_is_found_in_a_real_task(
    trainable: Trainable, defect: type[StepLoop]
) -> None:
    """The loop that ships tells the story as it should end, and the defective one does not."""
    assert STORIES[defect](trainable, StepLoop)
    assert not STORIES[defect](trainable, defect)
