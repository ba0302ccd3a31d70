"""`replace`: predicted stragglers are passed over, and replaced by standbys (DPro-SM).

At assignment, whoever is forecast to be slow goes last, so that it is the one that stands by where
there are standbys. During the round, a shard predicted to be late goes to a standby that would be
done with the whole of it sooner, and the worker that had it stands by from then on. Where no
standby is left, one more worker is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from statistics import median

from downpour.stragglers.base import (
    Action,
    Assignment,
    Option,
    Policy,
    Request,
    RoundView,
    RunningTask,
    Withdrawal,
)
from downpour.stragglers.outlook import Outlook, number
from downpour.stragglers.pairing import left_idle, pair

OPTIONS: Mapping[str, Option] = {"slowness": 1.5, "tries": 3}


def _replace(view: RoundView) -> list[Action]:
    slow = _predicted(view)
    order = sorted(view.idle, key=lambda name: slow.get(name, 0.0))
    assignments = pair(view, order)
    used = [choice.worker for choice in assignments if choice.worker in slow]
    if used:
        name = used[0]
        reason = f"no standby for {name}, forecast {slow[name]:.1f} times the median"
        return [*assignments, *_ask(view, reason)]
    if len(view.pending) > len(assignments):
        return [*assignments]
    return [*assignments, *_replacements(view, left_idle(view, assignments))]


def _predicted(view: RoundView) -> dict[str, float]:
    """Return how many times the median forecast each predicted straggler's is."""
    usual = median(pace.q50 for pace in view.paces.values()) if view.paces else 0.0
    if usual <= 0:
        return {}
    limit = number(view, OPTIONS, "slowness")
    times = {name: pace.q50 / usual for name, pace in view.paces.items()}
    return {name: slowness for name, slowness in times.items() if slowness > limit}


def _replacements(view: RoundView, standbys: list[str]) -> list[Action]:
    """Take late shards from their workers, the latest first, and let standbys begin them anew."""
    outlook = Outlook(view)
    typical = outlook.typical_seconds or inf
    free = outlook.fastest_first(standbys)
    actions: list[Action] = []
    for left, task in _late(view, outlook, typical):
        if not free:
            total = _seconds(task.elapsed_seconds + left)
            reason = f"no standby: {task.worker} {total}, median {typical:.1f} s"
            return [*actions, *_ask(view, reason)]
        anew = outlook.seconds_for(task.samples, free[0])
        if anew < left:
            reason = (
                f"{task.worker} {_seconds(task.elapsed_seconds + left)}, median {typical:.1f} s; "
                f"{free[0]} takes {anew:.1f} s, {_seconds(left, 'left')}"
            )
            actions += [
                Withdrawal(shard=task.shard, worker=task.worker, reason=reason),
                Assignment(shard=task.shard, worker=free.pop(0), reason=reason),
            ]
    return actions


def _late(
    view: RoundView, outlook: Outlook, typical_seconds: float
) -> list[tuple[float, RunningTask]]:
    """Return what is predicted to take too long, with the seconds left, the latest first.

    What was tried so often is slow for a reason that goes with it, and would never be done.
    """
    limit = number(view, OPTIONS, "slowness") * typical_seconds
    found = []
    for task in view.running:
        left = outlook.left_seconds(task)
        again = task.attempt + 1 < number(view, OPTIONS, "tries")
        alone = task.copies == 1 and task.meant_for is None and again
        if alone and left is not None and task.elapsed_seconds + left > limit:
            found.append((left, task))
    return sorted(found, key=lambda entry: (-entry[0], entry[1].shard))


def _ask(view: RoundView, reason: str) -> list[Request]:
    return [] if view.requested else [Request(reason=reason)]


def _seconds(seconds: float, what: str = "predicted") -> str:
    return f"{what} {seconds:.1f} s" if seconds < inf else "makes no step"


REPLACE = Policy(
    decide=_replace,
    watches=True,
    options=OPTIONS,
    summary="predicted stragglers are replaced by standbys (DPro-SM)",
)
