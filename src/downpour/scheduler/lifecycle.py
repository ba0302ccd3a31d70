"""The lives of tasks, workers and experiments, as tables.

A *task* is pending until a worker is asked to train it. While it runs others may be asked as well,
and may drop out again; it can come back (the last attempt failed, its worker went away) or be
published. A published update may still be refused, when its file turns out to be unusable; then
the task is pending again. An applied one is past recall, and so is one that was dropped, because
the round was closed without it. Late answers are welcome: an attempt that was given up may still
publish its task. Once an update was refused, those made before may not: what they brought in the
meantime is removed already.

A *worker* is idle or busy with exactly one attempt, until it is gone. It never comes back from
there; who registers again begins a new life. Whatever ends an attempt, be it an answer, a failure
or a cancellation, makes its worker idle in the same step. Only one that still works at something
which it should not is stuck, until it works at nothing any more. One that only the journal knows is
awaited: it keeps what it held, and is asked for nothing, until it registers with this manager.

An *experiment* waits for its turn, is prepared, runs and ends, once.

A step that is not in its table raises `IllegalTransition` with the steps that led there.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Generic, Literal, TypeVar

from downpour.errors import IllegalTransition
from downpour.values import ExperimentState, TaskState, WorkerState

# Steps are literals and not members of an enum, because a step is only ever an argument: mypy
# checks both, and in Python 3.11 looking a member up takes six times as long as comparing text.
TaskStep = Literal["assign", "lose", "publish", "give-up", "refuse", "apply", "drop"]
WorkerStep = Literal["register", "assign", "release", "stick", "go"]
ExperimentStep = Literal["activate", "start", "finish", "cancel", "fail"]

State = TypeVar("State", bound=StrEnum)
Step = TypeVar("Step", bound=str)
Table = Mapping[tuple[State, Step], State]

TASK: Table[TaskState, TaskStep] = {
    (TaskState.PENDING, "assign"): TaskState.RUNNING,
    (TaskState.PENDING, "publish"): TaskState.PUBLISHED,
    (TaskState.RUNNING, "assign"): TaskState.RUNNING,
    (TaskState.RUNNING, "lose"): TaskState.RUNNING,
    (TaskState.RUNNING, "publish"): TaskState.PUBLISHED,
    (TaskState.RUNNING, "give-up"): TaskState.PENDING,
    (TaskState.PUBLISHED, "refuse"): TaskState.PENDING,
    (TaskState.PUBLISHED, "apply"): TaskState.APPLIED,
    (TaskState.PENDING, "drop"): TaskState.DROPPED,
    (TaskState.RUNNING, "drop"): TaskState.DROPPED,
}

WORKER: Table[WorkerState, WorkerStep] = {
    (WorkerState.AWAITED, "register"): WorkerState.BUSY,
    (WorkerState.AWAITED, "go"): WorkerState.GONE,
    (WorkerState.IDLE, "assign"): WorkerState.BUSY,
    (WorkerState.BUSY, "release"): WorkerState.IDLE,
    (WorkerState.IDLE, "stick"): WorkerState.STUCK,
    (WorkerState.BUSY, "stick"): WorkerState.STUCK,
    (WorkerState.STUCK, "release"): WorkerState.IDLE,
    (WorkerState.IDLE, "go"): WorkerState.GONE,
    (WorkerState.BUSY, "go"): WorkerState.GONE,
    (WorkerState.STUCK, "go"): WorkerState.GONE,
}

EXPERIMENT: Table[ExperimentState, ExperimentStep] = {
    (ExperimentState.WAITING, "activate"): ExperimentState.PREPARING,
    (ExperimentState.PREPARING, "start"): ExperimentState.RUNNING,
    (ExperimentState.RUNNING, "finish"): ExperimentState.FINISHED,
    (ExperimentState.WAITING, "cancel"): ExperimentState.CANCELLED,
    (ExperimentState.PREPARING, "cancel"): ExperimentState.CANCELLED,
    (ExperimentState.RUNNING, "cancel"): ExperimentState.CANCELLED,
    (ExperimentState.PREPARING, "fail"): ExperimentState.FAILED,
    (ExperimentState.RUNNING, "fail"): ExperimentState.FAILED,
}

# Because a worker takes two steps a task for as long as it lives.
_STORY_LENGTH = 32


class Lifecycle(Generic[State, Step]):
    """A state that moves by a table, and remembers its last steps."""

    __slots__ = ("_story", "_table", "state", "who")

    def __init__(self, who: str, table: Table[State, Step], state: State) -> None:
        self.who = who
        self.state = state
        self._table = table
        self._story: tuple[str, ...] = (state,)

    def step(self, name: Step) -> None:
        """Take a step; raises IllegalTransition where the table does not have it."""
        after = self._table.get((self.state, name))
        if after is None:
            raise IllegalTransition(self.who, self.state, name, self._story)
        self._story = (*self._story[1 - _STORY_LENGTH :], f"{name} → {after}")
        self.state = after

    def may(self, name: Step) -> bool:
        """Say whether the table has this step from here."""
        return (self.state, name) in self._table
