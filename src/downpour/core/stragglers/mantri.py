"""`mantri`: restart or duplicate a shard that would take longer than a new attempt (Mantri, 2010).

While shards wait for workers, the policy ends an attempt that has clearly more time left than a new
one would take, and restarts the shard elsewhere. Once no shard waits, it duplicates a shard if the
duplicate probably ends sooner and saves resources. It stops a duplicate that no longer helps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from downpour.core.stragglers.base import (
    Action,
    Assignment,
    Option,
    Policy,
    RoundView,
    RunningTask,
    Withdrawal,
)
from downpour.core.stragglers.outlook import Outlook, chance_above, in_words, number
from downpour.core.stragglers.pairing import left_idle, pair

OPTIONS: Mapping[str, Option] = {"margin": 0.5, "chance": 0.25, "copies": 3}


def _mantri(view: RoundView) -> list[Action]:
    outlook = Outlook(view)
    restart = _restart(view, outlook)
    if restart:
        withdrawal, assignment = restart
        rest = [name for name in view.idle if name != assignment.worker]
        return [withdrawal, assignment, *pair(replace(view, idle=rest))]
    assignments = pair(view)
    # While shards wait for a worker, a duplicate would take one from them.
    if len(view.pending) > len(assignments):
        return [*assignments]
    spare = left_idle(view, assignments)
    return [*assignments, *_duplicates(view, outlook, spare), *_needless(view, outlook)]


def _restart(view: RoundView, outlook: Outlook) -> tuple[Withdrawal, Assignment] | None:
    """While shards wait for workers, end the latest attempt and restart its shard elsewhere."""
    spare = left_idle(view, [])
    # Otherwise a duplicate is better: it ends no attempt that may still come first.
    crowded = len(view.pending) > len(view.idle) - view.standbys
    if not view.pending or not spare or not crowded:
        return None
    margin = number(view, OPTIONS, "margin")
    for left, task in _slowest(view, outlook):
        worker = view.first_fit(task.shard, spare)
        if worker is None:
            continue
        new = outlook.seconds_for((1 - task.saved) * task.samples, worker)
        # Without a limit, the policy would forever restart a shard that is slow on every worker.
        few = task.attempt + 1 < number(view, OPTIONS, "copies")
        if not outlook.may_pay(left):
            return None  # the attempts after this one have less time left
        if task.copies == 1 and few and left > (1 + margin) * new:
            reason = f"restarted: {in_words(left)} on {task.worker}, {new:.1f} s anew on {worker}"
            return (
                Withdrawal(shard=task.shard, worker=task.worker, reason=reason),
                Assignment(shard=task.shard, worker=worker, reason=reason),
            )
    return None


def _duplicates(view: RoundView, outlook: Outlook, spare: list[str]) -> list[Assignment]:
    soonest: dict[int, tuple[float, RunningTask]] = {}
    for left, task in _slowest(view, outlook):
        soonest[task.shard] = (left, task)  # a shard's last entry is its first attempt to end
    soonest = {shard: entry for shard, entry in soonest.items() if outlook.may_pay(entry[0])}
    duplicates, copies = [], number(view, OPTIONS, "copies")
    for worker in outlook.fastest_first(spare):
        for left, task in soonest.values():
            new = outlook.seconds_for((1 - task.saved) * task.samples, worker)
            may = view.may_train(worker, task.shard) and task.copies < copies
            if may and _helps(view, task, left, new):
                del soonest[task.shard]
                reason = f"duplicated: {in_words(left)} on {task.worker}, {new:.1f} s on {worker}"
                duplicates.append(Assignment(shard=task.shard, worker=worker, reason=reason))
                break
        else:
            break  # if this worker helps no shard, a slower one doesn't either
    return duplicates


def _helps(view: RoundView, task: RunningTask, left: float, new: float) -> bool:
    """Whether a duplicate saves time and resources, with the chance that the options require."""
    # The paper's rule for c running attempts: t_left > t_new (c + 1) / c.
    least = new * (task.copies + 1) / task.copies
    if task.remaining is None:
        return left > least
    # The forecast counts seconds from the last report, and `least` counts from now.
    return chance_above(task.remaining, least + task.reported_seconds) > number(
        view, OPTIONS, "chance"
    )


def _needless(view: RoundView, outlook: Outlook) -> list[Withdrawal]:
    """Stop attempts that would end clearly later than another attempt at the same shard."""
    margin = 1 + number(view, OPTIONS, "margin")
    soonest: dict[int, float] = {}
    for left, task in _slowest(view, outlook):
        soonest[task.shard] = left
    return [
        Withdrawal(
            shard=task.shard,
            worker=task.worker,
            reason=f"stopped: {in_words(left)}, another attempt {soonest[task.shard]:.1f} s",
        )
        for left, task in _slowest(view, outlook)
        if task.copies > 1 and task.done > task.began_at and left > margin * soonest[task.shard]
    ]


def _slowest(view: RoundView, outlook: Outlook) -> list[tuple[float, RunningTask]]:
    """Return the attempts without a hand-over, with the seconds each has left, longest first."""
    slowest = []
    for task in view.running:
        left = outlook.left_seconds(task)
        if left is not None and task.meant_for is None:
            slowest.append((left, task))
    return sorted(slowest, key=lambda entry: (-entry[0], entry[1].shard))


MANTRI = Policy(
    decide=_mantri,
    watches=True,
    options=OPTIONS,
)
