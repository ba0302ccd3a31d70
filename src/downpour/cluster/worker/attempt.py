"""A task that a worker has accepted, and its attempt as the threads around it see it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from downpour.base.errors import (
    DownpourError,
    NonFinite,
    OutOfMemory,
    SpecError,
    StoreError,
    UnfitWorker,
)
from downpour.base.states import FailureKind
from downpour.base.values import Snapshot
from downpour.core.node.attempt import HeldAttempt
from downpour.learning.blame import describe_error
from downpour.network.rpc.messages import IndicesFile, TaskMessage


class TaskCancelled(Exception):
    """The attempt is no longer wanted; not an error of the task."""


class HandOverStop(Exception):
    """The attempt has stopped for a hand-over; another worker continues its snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(snapshot)
        self.snapshot = snapshot


@dataclass(slots=True, eq=False)
class TaskControl(HeldAttempt):
    """An attempt with a clock; `patience` scales how long its files may be missing."""

    patience: float = 1.0

    def begin(self, steps_done: int, steps_total: int) -> None:
        """Note that the attempt has loaded everything, and at which step its work begins."""
        self.loaded(steps_done, steps_total, time.monotonic())

    def advance(self, steps_done: int) -> None:
        """Note that a step has ended."""
        self.stepped(steps_done, time.monotonic())

    def raise_if_cancelled(self) -> None:
        """Raise TaskCancelled if the attempt is no longer wanted."""
        if self.cancelled:
            raise TaskCancelled


@dataclass(slots=True, eq=False)
class AcceptedTask(TaskControl):
    """An attempt that this worker has accepted, with its task."""

    task: TaskMessage = field(kw_only=True)


def part_of(task: TaskMessage) -> tuple[object, ...]:
    """Return, in short, the part of its shard that a task trains, and its model."""
    held = task.indices
    if isinstance(held, IndicesFile):
        return task.model.name, task.share, held.file.name
    return task.model.name, task.share, len(held), *map(int, (*held[:1], *held[-1:]))


_KINDS: tuple[tuple[type[Exception], FailureKind], ...] = (
    (NonFinite, FailureKind.NON_FINITE),
    (OutOfMemory, FailureKind.OUT_OF_MEMORY),
    (MemoryError, FailureKind.OUT_OF_MEMORY),
    (StoreError, FailureKind.STORE),
    (SpecError, FailureKind.SPEC),
    (UnfitWorker, FailureKind.OTHER_CODE),  # the protocol's word is older than its other causes
)


def failure_kind(error: BaseException) -> FailureKind:
    """Return the kind of failure that an error is."""
    return next((kind for cls, kind in _KINDS if isinstance(error, cls)), FailureKind.TASK)


def in_one_line(error: BaseException) -> str:
    """Describe an error; the same error at the same step gives the same line on every worker."""
    # The scheduler compares these lines, and does not retry a task that fails alike on two workers.
    where = "" if isinstance(error, DownpourError) else "; the worker's log has the traceback"
    return describe_error(error) + where
