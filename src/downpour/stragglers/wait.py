"""`wait`: the plain barrier. Shards go to idle workers in order, and the round waits for all.

The only finesse: a shard that failed on a worker goes to another one where there is a choice.
"""

from __future__ import annotations

from downpour.stragglers.base import Assignment, PendingTask, RoundView


def wait(view: RoundView) -> list[Assignment]:
    """Pair pending shards with idle workers, the lowest shard with whoever has waited longest."""
    idle = list(view.idle)
    assignments = []
    for task in view.pending:
        if not idle:
            break
        worker = next((name for name in idle if name not in task.failed_on), idle[0])
        idle.remove(worker)
        assignments.append(
            Assignment(shard=task.shard, worker=worker, reason=_reason(task, worker))
        )
    return assignments


def _reason(task: PendingTask, worker: str) -> str:
    if not task.failed_on:
        return "next shard in order for the worker idle longest"
    tried = ", ".join(dict.fromkeys(task.failed_on))
    if worker in task.failed_on:
        return f"tried again on the same worker: nobody else is idle (failed on {tried})"
    return f"tried again elsewhere: failed on {tried}"
