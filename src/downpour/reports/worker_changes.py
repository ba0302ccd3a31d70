"""Who came to an experiment after it had begun, who went, who was lost, and why: a line each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from downpour.records.record_lines import (
    AssignedLine,
    RecordLine,
    SubmittedLine,
    WorkerJoinedLine,
    WorkerLeftLine,
)


def worker_changes_of(record: Iterable[tuple[float, RecordLine]]) -> tuple[str, ...]:
    """Say it in the order in which it happened.

    Whoever was there when work began goes without saying, and so does one that registers again
    because the manager was started again.
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
            case _:
                pass
