"""States of experiments, tasks and workers, and kinds of failures, as messages spell them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, get_args


class ExperimentState(StrEnum):
    """The state of an experiment; `core/scheduler/lifecycle.py` has the steps between them."""

    WAITING = "waiting"
    PREPARING = "preparing"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether the experiment has finished, failed or been cancelled."""
        return self in _ENDINGS


Ending = Literal[ExperimentState.FINISHED, ExperimentState.FAILED, ExperimentState.CANCELLED]
"""The states in which an experiment ends."""
_ENDINGS = frozenset(get_args(Ending))


class TaskState(StrEnum):
    """The state of a task in its round."""

    PENDING = "pending"
    RUNNING = "running"
    PUBLISHED = "published"
    APPLIED = "applied"
    DROPPED = "dropped"


class WorkerState(StrEnum):
    """The state of a worker; only an idle one can be assigned a task."""

    AWAITED = "awaited"
    IDLE = "idle"
    BUSY = "busy"
    STUCK = "stuck"
    UNFIT = "unfit"
    GONE = "gone"


class FailureKind(StrEnum):
    """Why an attempt ended without an update; decides whether it costs its task a retry."""

    NON_FINITE = "non_finite"
    OUT_OF_MEMORY = "out_of_memory"
    STORE = "store"
    TASK = "task"
    CANCELLED = "cancelled"
    SPEC = "spec"
    OTHER_CODE = "other_code"
    LOST = "lost"
    DATASET = "dataset"
    HANDED_OVER = "handed_over"
    WITHDRAWN = "withdrawn"


BLAMELESS = frozenset(
    {
        FailureKind.CANCELLED,
        FailureKind.HANDED_OVER,
        FailureKind.WITHDRAWN,
        FailureKind.OTHER_CODE,
        FailureKind.DATASET,
    }
)
"""Kinds that cost a task no retry: the attempt never began, or was stopped on purpose."""
REPEATABLE = frozenset({FailureKind.NON_FINITE, FailureKind.TASK})
"""Kinds that the task alone may cause; if it does, every worker fails in the same way."""


@dataclass(frozen=True, slots=True)
class Failure:
    """How an attempt failed; the reason names the step, and the line of the user's file."""

    kind: FailureKind
    reason: str
