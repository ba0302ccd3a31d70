"""The life cycles of tasks, workers and experiments, as tables.

A *task* is pending until a worker is asked to train it. While it runs, other workers may be asked
as well, and may give it up again. When no worker holds it, it is pending again; when an attempt
publishes its update, it is published. A published update may still be refused, if its file turns
out to be unusable; then the task is pending again. A task is final once it is applied, or dropped
because the round was closed without it. Late updates count: an attempt that was given up may still
publish its task. Only after a refusal no earlier attempt may, because the files that came late were
removed as not needed.

A *worker* is idle, or busy with exactly one attempt, until it is gone. A worker that registers
again begins a new life. Any end of an attempt, by an update, a failure or a cancellation, makes its
worker idle in the same step. A worker that still works at something that it should not is stuck
until it reports no attempt. One that cannot train the active experiment is unfit until that
experiment has ended. A worker known from the journal alone is awaited: it keeps its attempt, and is
asked for nothing, until it registers with this manager.

An *experiment* waits in the queue, is prepared, runs and ends, once.

A step that is not in its table raises `IllegalTransition` with the steps that led there.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Generic, Literal, TypeVar

from downpour.base.errors import IllegalTransition
from downpour.base.states import ExperimentState, TaskState, WorkerState

# Steps are literals and not members of an enum, because a step is only ever an argument. mypy
# checks both, but in Python 3.11 looking up a member takes six times as long as comparing text.
TaskStep = Literal["assign", "lose", "publish", "give-up", "refuse", "apply", "drop"]
WorkerStep = Literal["register", "assign", "release", "stick", "exclude", "readmit", "go"]
ExperimentStep = Literal["activate", "start", "finish", "cancel", "fail"]

State = TypeVar("State", bound=StrEnum)
Step = TypeVar("Step", bound=str)
Table = Mapping[tuple[State, Step], State]

TASK: Table[TaskState, TaskStep] = {
    (TaskState.PENDING, "assign"): TaskState.RUNNING,
    # By a late update: its attempt was given up, and the worker had not heard of that.
    (TaskState.PENDING, "publish"): TaskState.PUBLISHED,
    # Copies: a second worker is asked as well, and one of several gives its attempt up.
    (TaskState.RUNNING, "assign"): TaskState.RUNNING,
    (TaskState.RUNNING, "lose"): TaskState.RUNNING,
    (TaskState.RUNNING, "publish"): TaskState.PUBLISHED,
    (TaskState.RUNNING, "give-up"): TaskState.PENDING,
    (TaskState.PUBLISHED, "refuse"): TaskState.PENDING,
    (TaskState.PUBLISHED, "apply"): TaskState.APPLIED,
    # Not from published, because an existing update counts.
    (TaskState.PENDING, "drop"): TaskState.DROPPED,
    (TaskState.RUNNING, "drop"): TaskState.DROPPED,
}

WORKER: Table[WorkerState, WorkerStep] = {
    (WorkerState.AWAITED, "register"): WorkerState.BUSY,
    (WorkerState.AWAITED, "go"): WorkerState.GONE,
    (WorkerState.IDLE, "assign"): WorkerState.BUSY,
    (WorkerState.BUSY, "release"): WorkerState.IDLE,
    # An idle worker is stuck if it joins with another attempt.
    (WorkerState.IDLE, "stick"): WorkerState.STUCK,
    (WorkerState.BUSY, "stick"): WorkerState.STUCK,
    (WorkerState.STUCK, "release"): WorkerState.IDLE,
    (WorkerState.IDLE, "exclude"): WorkerState.UNFIT,
    (WorkerState.UNFIT, "readmit"): WorkerState.IDLE,
    (WorkerState.IDLE, "go"): WorkerState.GONE,
    (WorkerState.BUSY, "go"): WorkerState.GONE,
    (WorkerState.STUCK, "go"): WorkerState.GONE,
    (WorkerState.UNFIT, "go"): WorkerState.GONE,
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
    """A state that changes by a table, and remembers its last steps for error messages."""

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
        """Whether the table has this step from the present state."""
        return (self.state, name) in self._table
