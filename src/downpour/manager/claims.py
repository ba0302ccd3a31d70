"""What workers claim of their attempts, checked against what the manager knows by itself.

A report decides what is averaged, with which weight, and which files are removed once they are
spent. So a file that is named must be one of that very attempt, and what follows from the shard is
not believed but compared. A claim that does not hold is refused before the core hears of it, and
nothing is removed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from downpour.errors import Refused
from downpour.scheduler import Scheduler
from downpour.store import layout
from downpour.store.layout import AttemptKind, AttemptName
from downpour.training.batches import work_of
from downpour.values import AttemptId, Progress, PublishedFile, Snapshot, Update


def check_update(attempt: AttemptId, update: Update) -> None:
    """Raise Refused where an update names files of others, or a loss that is no number."""
    _check_file("update.file", "update", attempt, update.file)
    if update.optimizer_state is not None:
        _check_file("update.optimizer_state", "optimizer", attempt, update.optimizer_state)
    if not math.isfinite(update.loss):
        raise Refused("update.loss", f"{update.loss} is no finite number")


def check_work(core: Scheduler, attempt: AttemptId, update: Update) -> None:
    """Raise Refused where an update is not of what was asked for; to be called beside the core."""
    found = core.state.find(attempt)
    if found is None:
        return  # it comes too late, and changes nothing
    steps, samples = work_of(found.experiment.spec, found.task.offer.samples)
    for field, claimed, known in (
        ("samples", update.samples, samples),
        ("steps", update.steps, steps),
    ):
        if claimed != known:
            raise Refused(f"update.{field}", f"{claimed}, where {attempt} has {known}")


def check_snapshot(attempt: AttemptId, snapshot: Snapshot) -> None:
    """Raise Refused where a snapshot is a file of others."""
    _check_file("snapshot.file", "snapshot", attempt, snapshot.file)


def credible(running: Sequence[Progress]) -> tuple[Progress, ...]:
    """Return what a heartbeat says, without snapshots that are files of others."""
    return tuple(
        replace(progress, snapshot=None)
        if progress.snapshot is not None
        and not _is_of(progress.attempt, "snapshot", progress.snapshot.file)
        else progress
        for progress in running
    )


def _check_file(field: str, kind: AttemptKind, attempt: AttemptId, file: PublishedFile) -> None:
    if not _is_of(attempt, kind, file):
        raise Refused(field, f"{file.name!r} is no {kind} of {attempt}")


def _is_of(attempt: AttemptId, kind: AttemptKind, file: PublishedFile) -> bool:
    parsed = layout.parse_name(file.name)
    if not isinstance(parsed, AttemptName):
        return False
    numbers = parsed.round, parsed.shard, parsed.attempt
    return (parsed.kind, *numbers) == (kind, attempt.round, attempt.shard, attempt.attempt)
