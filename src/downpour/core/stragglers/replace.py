"""`replace`: pass over forecast stragglers, and replace them with standbys (DPro-SM).

At assignment, a worker with a slow forecast comes last, so that it is the one that stands by.
During the round, a shard that will be late goes to a standby that would train all of it sooner. Its
former worker then stands by. If no standby is left, the policy requests one more worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from statistics import median

from downpour.core.stragglers.base import (
    Action,
    Assignment,
    Option,
    Policy,
    RoundView,
    RunningTask,
    Withdrawal,
    WorkerRequest,
)
from downpour.core.stragglers.outlook import Outlook, number
from downpour.core.stragglers.pairing import left_idle, pair

OPTIONS: Mapping[str, Option] = {"slowness": 1.5, "tries": 3}


def _replace(view: RoundView) -> list[Action]:
    slow = _forecast_stragglers(view)
    order = sorted(view.idle, key=lambda name: slow.get(name, 0.0))
    assignments = pair(view, order)
    # A slow worker gets a shard only if no other one is left.
    used = [choice.worker for choice in assignments if choice.worker in slow]
    if used:
        name = used[0]
        reason = f"no standby for {name}, forecast {slow[name]:.1f} times the median"
        return [*assignments, *_ask(view, reason)]
    if len(view.pending) > len(assignments):
        return [*assignments]
    return [*assignments, *_replacements(view, left_idle(view, assignments))]


def _forecast_stragglers(view: RoundView) -> dict[str, float]:
    """Return each straggler's forecast, divided by the median forecast."""
    usual = median(pace.q50 for pace in view.paces.values()) if view.paces else 0.0
    if usual <= 0:
        return {}
    limit = number(view, OPTIONS, "slowness")
    times = {name: pace.q50 / usual for name, pace in view.paces.items()}
    return {name: slowness for name, slowness in times.items() if slowness > limit}


def _replacements(view: RoundView, standbys: list[str]) -> list[Action]:
    """Withdraw late shards, the latest first, and assign them to standbys, from their beginning."""
    outlook = Outlook(view)
    typical = outlook.typical_seconds or inf
    free = outlook.fastest_first(standbys)
    actions: list[Action] = []
    for left, task in _late(view, outlook, typical):
        standby = view.first_fit(task.shard, free)
        if standby is None:
            total = _seconds(task.elapsed_seconds + left)
            reason = f"no standby: {task.worker} {total}, median {typical:.1f} s"
            return [*actions, *_ask(view, reason)]
        # We count the whole shard, as in the paper, but the new worker uses any snapshot.
        anew = outlook.seconds_for(task.samples, standby)
        if anew < left:
            reason = (
                f"{task.worker} {_seconds(task.elapsed_seconds + left)}, median {typical:.1f} s; "
                f"{standby} takes {anew:.1f} s, {_seconds(left, 'left')}"
            )
            free.remove(standby)
            actions += [
                Withdrawal(shard=task.shard, worker=task.worker, reason=reason),
                Assignment(shard=task.shard, worker=standby, reason=reason),
            ]
    return actions


def _late(
    view: RoundView, outlook: Outlook, typical_seconds: float
) -> list[tuple[float, RunningTask]]:
    """Return the attempts that will take too long, with the seconds left, the latest first.

    After `tries` attempts, the policy leaves a shard alone. Such a shard is slow on every worker:
    the policy would take it from all of them, and it would never end.
    """
    limit = number(view, OPTIONS, "slowness") * typical_seconds
    late = []
    for task in view.running:
        left = outlook.left_seconds(task)
        again = task.attempt + 1 < number(view, OPTIONS, "tries")
        alone = task.copies == 1 and task.meant_for is None and again
        if not alone or left is None or not outlook.may_pay(left):
            continue
        if task.elapsed_seconds + left > limit:
            late.append((left, task))
    return sorted(late, key=lambda entry: (-entry[0], entry[1].shard))


def _ask(view: RoundView, reason: str) -> list[WorkerRequest]:
    # We request one worker at a time: it takes seconds to start, and may be enough.
    return [] if view.requested else [WorkerRequest(reason=reason)]


def _seconds(seconds: float, what: str = "forecast") -> str:
    return f"{what} {seconds:.1f} s" if seconds < inf else "makes no step"


REPLACE = Policy(
    decide=_replace,
    watches=True,
    options=OPTIONS,
)
