"""Workers that joined late, left, were lost or disturbed, or have other packages: a line each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from downpour.files.records.attempt_lines import AssignedLine
from downpour.files.records.record_lines import (
    DisturbedLine,
    OtherPackagesLine,
    RecordLine,
    SubmittedLine,
    WorkerJoinedLine,
    WorkerLeftLine,
)


def worker_changes_of(record: Iterable[tuple[float, RecordLine]]) -> tuple[str, ...]:
    """Return a line for each change, in the order in which they happened.

    Workers that were present when work began have no line. Nor has a worker that registers again
    after the manager restarted.
    """
    return tuple(_changes(record))


def _changes(record: Iterable[tuple[float, RecordLine]]) -> Iterator[str]:
    here, began, at_work = set[str](), 0.0, False
    for at_seconds, fact in record:
        after = f"after {at_seconds - began:.1f} s"
        match fact:
            case SubmittedLine():
                began = at_seconds
            case AssignedLine():
                at_work = True
            case WorkerJoinedLine(worker=name):
                if name not in here and at_work:
                    yield f"{name} joined {after}"
                here.add(name)
            case WorkerLeftLine(worker=name):
                here.discard(name)
                yield f"{name} {'was lost' if fact.lost else 'left'} {after}: {fact.reason}"
            case OtherPackagesLine():
                yield f"{fact.worker} has {'; '.join(fact.packages)}"
            case DisturbedLine():
                yield f"{fact} on purpose, {after}"
            case _:
                pass
