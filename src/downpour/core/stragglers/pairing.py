"""Pairs pending shards with idle workers, as every policy does.

Shards go, in order, to the worker that has been idle longest. If a shard failed on a worker, it
goes to another one, and waits while the others are busy. So if everything fails at once on one
worker, each shard loses one attempt, but the experiment continues. After the loss of a worker,
another process may start under its name. If no other worker is idle, the new process gets the
shard, too, but only once. A handed-over shard goes to its intended worker, which takes no other
shard before. Standbys stay idle until a shard fails; then they take it over. A shard with its own
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
    # A worker that will continue a handed-over shard must be idle when that shard is pending.
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
    """Assign pending shards to some idle workers, or to any if otherwise no worker would train.

    Args:
        view: the round.
        order: the idle workers to choose from, best first.
        reason: why the policy leaves the others out; each assignment's reason ends with it.
    """
    chosen = pair(view, order)
    if not chosen and len(view.idle) == len(view.workers):
        return pair(view)
    if not reason:
        return chosen
    return [replace(choice, reason=f"{choice.reason}; {reason}") for choice in chosen]


def left_idle(view: RoundView, assignments: Sequence[Assignment]) -> list[str]:
    """Return the idle workers that get no new shard and await no hand-over."""
    taken = _promised(view) | {choice.worker for choice in assignments}
    return [name for name in view.idle if name not in taken]


def _room(view: RoundView) -> int:
    """Return how many idle workers may get a shard that has not failed before.

    If all workers are idle, at least one may: a worker may have left, so that only standbys remain.
    """
    all_are_idle = len(view.idle) == len(view.workers)
    return max(len(view.idle) - view.standbys, int(all_are_idle))


def _urgency(task: PendingTask) -> tuple[bool, bool]:
    # False sorts first. A shard that failed has lost the time of an attempt, so it comes before
    # shards that have not begun.
    return task.meant_for is None, not task.failed_on


def _promised(view: RoundView) -> set[str]:
    """Return the workers that will continue a shard whose hand-over has begun or ended."""
    meant = [*((t.shard, t.meant_for) for t in view.pending)]
    meant += ((t.shard, t.meant_for) for t in view.running)
    return {name for shard, name in meant if name is not None and view.may_train(name, shard)}


def _handed_over(task: PendingTask, idle: Collection[str]) -> list[Assignment]:
    """Assign a shard to the worker that it is meant for, unless that worker is busy."""
    if task.meant_for is None or task.meant_for not in idle:
        return []
    reason = f"handed over after {task.saved:.0%}: goes on from there"
    return [Assignment(shard=task.shard, worker=task.meant_for, reason=reason)]


def _choose(view: RoundView, task: PendingTask, waiting: Iterable[str]) -> str | None:
    """Return the idle worker for a shard, or None if it should wait for a busy worker."""
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
