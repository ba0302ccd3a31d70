"""`wait`: the plain barrier. Shards go to idle workers in order, and the round waits for all.

The only finesse: a shard that failed on a worker goes to another one, and waits for it where it is
busy. So a worker that fails at everything at once costs each shard one try, and not the experiment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from downpour.stragglers.base import Assignment, PendingTask, RoundView


def wait(view: RoundView) -> list[Assignment]:
    """Pair pending shards with idle workers: those that failed before first, then in order."""
    idle = deque(view.idle)
    assignments = []
    for task in sorted(view.pending, key=lambda task: not task.failed_on):
        if not idle:
            break
        worker = _choose(task, idle, view.workers)
        if worker is None:
            continue
        idle.remove(worker)
        assignments.append(
            Assignment(shard=task.shard, worker=worker, reason=_reason(task, worker))
        )
    return assignments


def _choose(task: PendingTask, idle: deque[str], workers: Collection[str]) -> str | None:
    """Return who should train it, or None where it should wait for somebody who is busy."""
    untried = next((name for name in idle if name not in task.failed_on), None)
    if untried is not None:
        return untried
    nobody_else = all(name in task.failed_on for name in workers)
    return idle[0] if nobody_else else None


def _reason(task: PendingTask, worker: str) -> str:
    if not task.failed_on:
        return "next shard in order for the worker idle longest"
    tried = ", ".join(dict.fromkeys(task.failed_on))
    if worker in task.failed_on:
        return f"tried again, although it failed on everybody here (on {tried})"
    return f"tried again elsewhere: failed on {tried}"
