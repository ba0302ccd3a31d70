"""`late`: speculative copies of the shards that will end last (LATE, Zaharia et al. 2008).

An idle worker that is not slow itself gets a copy of the shard with the longest time left. The
policy copies a shard if it advances more slowly than three quarters of all shards, is old enough
and has no copy yet. The first update counts. The paper's minimum age of a minute suits tasks of
minutes. Here it is a share of a shard's usual time, so that it fits tasks of seconds as well.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import inf

from downpour.core.stragglers.base import Action, Assignment, Option, Policy, RoundView, RunningTask
from downpour.core.stragglers.outlook import Outlook, copied, in_words, number, quantile
from downpour.core.stragglers.pairing import left_idle, pair

OPTIONS: Mapping[str, Option] = {"cap": 0.1, "slow": 0.25, "min_age": 0.5}


def _late(view: RoundView) -> list[Action]:
    assignments = pair(view)
    # While shards wait for a worker, a copy would take one from them.
    if len(view.pending) > len(assignments):
        return [*assignments]
    outlook = Outlook(view)
    # We allow at least one copy, because a tenth of fewer than ten workers rounds down to none.
    cap = max(int(number(view, OPTIONS, "cap") * len(view.workers)), 1) - copied(view.running)
    fit = _not_slow(view, outlook, left_idle(view, assignments))
    late = sorted(_slow_tasks(view, outlook), key=lambda entry: -entry[0])
    copies: list[Assignment] = []
    for left, task in late:
        worker = view.first_fit(task.shard, fit)
        if worker is not None and len(copies) < cap:
            fit.remove(worker)
            reason = _reason(view, left, task)
            copies.append(Assignment(shard=task.shard, worker=worker, reason=reason))
    return [*assignments, *copies]


def _not_slow(view: RoundView, outlook: Outlook, idle: Collection[str]) -> list[str]:
    """Return the idle workers that are not among the slowest."""
    speeds = {name: outlook.speed(name) for name in view.workers}
    known = [speed for speed in speeds.values() if speed is not None]
    limit = quantile(known, number(view, OPTIONS, "slow"))
    # A worker of unknown speed may get a copy, because nothing shows that it is slow.
    return [name for name in idle if (speeds[name] or inf) >= limit]


def _slow_tasks(view: RoundView, outlook: Outlook) -> list[tuple[float, RunningTask]]:
    """Return the shards that may be copied, with the seconds that each has left."""
    # The round's published shards count as well. Without them, we would compare the last few shards
    # only with each other, and a quarter of them would always be slow.
    rates = [1 / seconds for _, seconds in view.published if seconds > 0]
    rates += [task.rate for task in view.running]
    limit = quantile(rates, number(view, OPTIONS, "slow"))
    old = number(view, OPTIONS, "min_age") * (outlook.typical_seconds or inf)
    slow = []
    for task in view.running:
        left = outlook.left_seconds(task)
        alone = task.copies == 1 and task.meant_for is None
        if not alone or left is None or not outlook.may_pay(left):
            continue
        if task.elapsed_seconds >= old and task.rate < limit:
            slow.append((left, task))
    return slow


def _reason(view: RoundView, left: float, task: RunningTask) -> str:
    slow = number(view, OPTIONS, "slow")
    return f"copied: {in_words(left)} on {task.worker}, among the slowest {slow:.0%}"


LATE = Policy(
    decide=_late,
    watches=True,
    options=OPTIONS,
)
