"""Checks workers' reports about their attempts against the manager's own knowledge.

A report decides the average's inputs and weights, and the files to remove later. So each file that
a report names must belong to its attempt, and the manager compares every number that follows from
the shard with its own. It refuses a false claim before the core sees it, and removes no file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from downpour.base.errors import Refused
from downpour.base.values import AttemptId, Progress, PublishedFile, Snapshot, Update
from downpour.core.scheduler import Scheduler
from downpour.files.store import layout
from downpour.files.store.layout import AttemptKind, AttemptName
from downpour.learning.training.epoch_order import part_of


def check_update(attempt: AttemptId, update: Update) -> None:
    """Raise Refused if an update names files of other attempts, or its loss is not finite."""
    _check_file("update.file", "update", attempt, update.file)
    if update.optimizer_state is not None:
        _check_file("update.optimizer_state", "optimizer", attempt, update.optimizer_state)
    if not math.isfinite(update.loss):
        raise Refused("update.loss", f"{update.loss} is not a finite number")


def check_work(core: Scheduler, attempt: AttemptId, update: Update) -> None:
    """Raise Refused if an update does not fit the assigned work; runs in the driver's thread."""
    assigned = core.state.find(attempt)
    if assigned is None:
        return  # too late: the round has ended, and the core ignores the update
    spec = assigned.experiment.spec
    task, number = assigned.task, spec.rounds_before + attempt.round
    part = part_of(spec, task.samples, number, task.share)
    # If we believed these numbers, one defective worker could change the weights of all updates
    # under the aggregators that weigh by samples.
    for field, claimed, known in (
        ("samples", update.samples, part.samples),
        ("steps", update.steps, part.steps),
    ):
        if claimed != known:
            raise Refused(f"update.{field}", f"{claimed}, but {attempt} has {known}")


def check_snapshot(attempt: AttemptId, snapshot: Snapshot) -> None:
    """Raise Refused if a snapshot is a file of another attempt."""
    _check_file("snapshot.file", "snapshot", attempt, snapshot.file)


def credible(running: Sequence[Progress]) -> tuple[Progress, ...]:
    """Return a heartbeat's progress, without snapshots that are files of other attempts."""
    # We don't refuse a heartbeat, because a worker whose heartbeats fail counts as lost.
    return tuple(
        replace(progress, snapshot=None)
        if progress.snapshot is not None
        and not _is_of(progress.attempt, "snapshot", progress.snapshot.file)
        else progress
        for progress in running
    )


def _check_file(field: str, kind: AttemptKind, attempt: AttemptId, file: PublishedFile) -> None:
    if not _is_of(attempt, kind, file):
        raise Refused(field, f"{file.name!r} is not the {kind} file of {attempt}")


def _is_of(attempt: AttemptId, kind: AttemptKind, file: PublishedFile) -> bool:
    parsed = layout.parse_name(file.name)
    if not isinstance(parsed, AttemptName):
        return False
    # We don't compare the experiment, because a bare name refers to the folder of the attempt's
    # own.
    numbers = parsed.round, parsed.shard, parsed.attempt
    return (parsed.kind, *numbers) == (kind, attempt.round, attempt.shard, attempt.attempt)
