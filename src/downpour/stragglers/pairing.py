"""Pairs pending shards with idle workers: what every policy does about work that nobody has.

Shards go to whoever has waited longest, in order. A shard that failed on a worker goes to another
one, and waits for it where it is busy; so a worker that fails at everything at once costs each
shard one try, and not the experiment. A shard that was handed over goes to the worker it is meant
for, and that one takes nothing else before. So many workers as are to stand by are left free,
except for what has failed before: that is what they stand by for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import replace

from downpour.stragglers.base import Assignment, PendingTask, RoundView


def pair(view: RoundView, order: Sequence[str] | None = None) -> list[Assignment]:
    """Give pending shards to idle workers: those that failed before first, then in order.

    Args:
        view: the round.
        order: the idle workers to choose from, best first; absent: all of them.
    """
    promised = _promised(view)
    idle = deque(name for name in (view.idle if order is None else order) if name not in promised)
    room = _room(view)
    assignments: list[Assignment] = []
    for task in sorted(view.pending, key=_urgency):
        if task.meant_for in view.workers:
            taken = {choice.worker for choice in assignments}
            assignments += _handed_over(task, [name for name in view.idle if name not in taken])
            continue
        if not idle:
            break
        if len(assignments) >= room and not task.failed_on:
            continue
        worker = _choose(task, idle, view.workers)
        if worker is not None:
            idle.remove(worker)
            assignments.append(
                Assignment(shard=task.shard, worker=worker, reason=_reason(task, worker))
            )
    return assignments


def pair_among(view: RoundView, order: Sequence[str], reason: str = "") -> list[Assignment]:
    """Give pending shards to some of the idle; to all if otherwise nobody would do anything.

    Args:
        view: the round.
        order: the idle workers to choose from, best first.
        reason: why the others are left out, for those that get something instead of them.
    """
    chosen = pair(view, order)
    if not chosen and len(view.idle) == len(view.workers):
        return pair(view)
    if not reason:
        return chosen
    return [replace(choice, reason=f"{choice.reason}; {reason}") for choice in chosen]


def left_idle(view: RoundView, assignments: Sequence[Assignment]) -> list[str]:
    """Return the idle workers that nothing was given to, nor is promised."""
    taken = _promised(view) | {choice.worker for choice in assignments}
    return [name for name in view.idle if name not in taken]


def _room(view: RoundView) -> int:
    """Return how many of the idle may be given something new; one at least, if nobody is busy."""
    nobody_is_busy = len(view.idle) == len(view.workers)
    return max(len(view.idle) - view.standbys, int(nobody_is_busy))


def _urgency(task: PendingTask) -> tuple[bool, bool]:
    return task.meant_for is None, not task.failed_on


def _promised(view: RoundView) -> set[str]:
    """Return the workers that are to go on with something which is being handed over."""
    names = [*(t.meant_for for t in view.pending), *(t.meant_for for t in view.running)]
    return {name for name in names if name is not None}


def _handed_over(task: PendingTask, idle: Collection[str]) -> list[Assignment]:
    """Give a shard to the worker that it is meant for, or let it wait for that one."""
    if task.meant_for is None or task.meant_for not in idle:
        return []
    reason = f"goes on where another stopped, after {task.saved:.0%}"
    return [Assignment(shard=task.shard, worker=task.meant_for, reason=reason)]


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
