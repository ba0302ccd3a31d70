"""A task that a worker has accepted, and the kinds of its failures."""

from __future__ import annotations

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
from downpour.cluster.worker.control import TaskControl
from downpour.learning.blame import describe_error
from downpour.network.rpc.messages import IndicesFile, TaskMessage


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
