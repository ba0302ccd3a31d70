"""Pairs pending shards with idle workers: what every policy does about shards without a worker.

Shards go, in order, to the worker that has been idle longest. A shard that failed on a worker goes
to another one, and waits while the others are busy. So a worker on which everything fails at once
costs each shard one attempt, and not the experiment. After the loss of a worker, another process
may start under its name. If no other worker is idle, that one gets the shard, too, but only once. A
shard that was handed over goes to the worker it is meant for, which takes no other shard before.
Standbys stay idle, except for shards that have failed: that is their purpose. A shard with its own
needs waits for a worker with the right labels.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from downpour.core.stragglers.base import Assignment, PendingTask, RoundView


def pair(view: RoundView, order: Sequence[str] | None = None) -> list[Assignment]:
    """Assign pending shards to idle workers: failed ones first, then in order.

    Args:
        view: the round.
        order: the idle workers to choose from, best first; absent: all of them.
    """
    # A worker that a shard was handed over to must find itself idle when that shard is pending.
    promised = _promised(view)
    idle = deque(name for name in (view.idle if order is None else order) if name not in promised)
    room = _room(view)
    assignments: list[Assignment] = []
    for task in sorted(view.pending, key=_urgency):
        # If its intended worker has gone, or came back with other labels, any worker may continue
        # from the snapshot.
        meant = task.meant_for
        if meant is not None and meant in view.workers and view.may_train(meant, task.shard):
            taken = {choice.worker for choice in assignments}
            assignments += _handed_over(task, [name for name in view.idle if name not in taken])
            continue
        if not idle:
            break
        if len(assignments) >= room and not task.failed_on:
            continue
        worker = _choose(view, task, idle)
        if worker is not None:
            idle.remove(worker)
            assignments.append(
                Assignment(shard=task.shard, worker=worker, reason=_reason(task, worker))
            )
    return assignments


def pair_among(view: RoundView, order: Sequence[str], reason: str = "") -> list[Assignment]:
    """Assign pending shards to some of the idle workers; to all of them if none would train else.

    Args:
        view: the round.
        order: the idle workers to choose from, best first.
        reason: why the others are left out; it is added to the reasons of the assignments.
    """
    chosen = pair(view, order)
    if not chosen and len(view.idle) == len(view.workers):
        return pair(view)
    if not reason:
        return chosen
    return [replace(choice, reason=f"{choice.reason}; {reason}") for choice in chosen]


def left_idle(view: RoundView, assignments: Sequence[Assignment]) -> list[str]:
    """Return the idle workers that have no new shard, and to which none is being handed over."""
    taken = _promised(view) | {choice.worker for choice in assignments}
    return [name for name in view.idle if name not in taken]


def _room(view: RoundView) -> int:
    """Return how many idle workers may get a shard that has not failed before.

    It is at least one where all are idle: a worker may have left, so that only standbys remain.
    """
    all_are_idle = len(view.idle) == len(view.workers)
    return max(len(view.idle) - view.standbys, int(all_are_idle))


def _urgency(task: PendingTask) -> tuple[bool, bool]:
    # False sorts first. A shard that failed has lost the time of an attempt, so it comes before
    # shards that have not begun.
    return task.meant_for is None, not task.failed_on


def _promised(view: RoundView) -> set[str]:
    """Return the workers that are to go on with a shard which was or is being handed over."""
    meant = [*((t.shard, t.meant_for) for t in view.pending)]
    meant += ((t.shard, t.meant_for) for t in view.running)
    return {name for shard, name in meant if name is not None and view.may_train(name, shard)}


def _handed_over(task: PendingTask, idle: Collection[str]) -> list[Assignment]:
    """Assign a shard to the worker that it is meant for; none while that worker is busy."""
    if task.meant_for is None or task.meant_for not in idle:
        return []
    reason = f"handed over after {task.saved:.0%}: goes on from there"
    return [Assignment(shard=task.shard, worker=task.meant_for, reason=reason)]


def _choose(view: RoundView, task: PendingTask, waiting: Iterable[str]) -> str | None:
    """Return the idle worker for a shard, or None where it should wait for one that is busy."""
    untried = (name for name in waiting if name not in task.failed_on)
    first = view.first_fit(task.shard, untried)
    if first is not None:
        return first
    idle = [name for name in waiting if view.may_train(name, task.shard)]
    back = next((name for name in idle if name in task.lost_on), None)
    if back is not None:
        return back
    able = (name for name in view.workers if view.may_train(name, task.shard))
    return idle[0] if idle and all(name in task.failed_on for name in able) else None


def _reason(task: PendingTask, worker: str) -> str:
    if not task.failed_on:
        return "next shard in order for the worker idle longest"
    tried = ", ".join(dict.fromkeys(task.failed_on))
    if worker in task.lost_on:
        return f"tried again on {worker}, which is back after it was lost"
    if worker in task.failed_on:
        return f"tried again, although it failed on all workers here ({tried})"
    return f"tried again elsewhere: failed on {tried}"
