"""`mantri`: restart or duplicate by what is left and what anew would take (Mantri, 2010).

While shards wait for workers, what would take clearly longer than anew is killed and restarted;
once none wait, a shard is duplicated where that ends sooner with some certainty and saves
resources. A duplicate that no longer helps is stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from downpour.stragglers.base import (
    Action,
    Assignment,
    Option,
    Policy,
    RoundView,
    RunningTask,
    Withdrawal,
)
from downpour.stragglers.outlook import Outlook, chance_above, in_words, number
from downpour.stragglers.pairing import left_idle, pair

OPTIONS: Mapping[str, Option] = {"margin": 0.5, "chance": 0.25, "copies": 3}


def _mantri(view: RoundView) -> list[Action]:
    outlook = Outlook(view)
    restart = _restart(view, outlook)
    if restart:
        withdrawal, assignment = restart
        rest = [name for name in view.idle if name != assignment.worker]
        return [withdrawal, assignment, *pair(replace(view, idle=rest))]
    assignments = pair(view)
    if len(view.pending) > len(assignments):
        return [*assignments]
    spare = left_idle(view, assignments)
    return [*assignments, *_duplicates(view, outlook, spare), *_needless(view, outlook)]


def _restart(view: RoundView, outlook: Outlook) -> tuple[Withdrawal, Assignment] | None:
    """Kill the worst attempt and begin it anew elsewhere, where shards wait for workers anyway."""
    spare = left_idle(view, [])
    crowded = len(view.pending) > len(view.idle) - view.standbys
    if not view.pending or not spare or not crowded:
        return None
    margin = number(view, OPTIONS, "margin")
    for left, task in _slowest(view, outlook):
        new = outlook.seconds_for((1 - task.saved) * task.samples, spare[0])
        few = task.attempt + 1 < number(view, OPTIONS, "copies")
        if task.copies == 1 and few and left > (1 + margin) * new:
            reason = f"restarted: {in_words(left)} on {task.worker}, {new:.1f} s anew on {spare[0]}"
            return (
                Withdrawal(shard=task.shard, worker=task.worker, reason=reason),
                Assignment(shard=task.shard, worker=spare[0], reason=reason),
            )
    return None


def _duplicates(view: RoundView, outlook: Outlook, spare: list[str]) -> list[Assignment]:
    soonest: dict[int, tuple[float, RunningTask]] = {}
    for left, task in _slowest(view, outlook):
        soonest[task.shard] = (left, task)  # the last one of a shard is its best
    duplicates = []
    for worker in outlook.fastest_first(spare):
        for left, task in soonest.values():
            new = outlook.seconds_for((1 - task.saved) * task.samples, worker)
            if task.copies < number(view, OPTIONS, "copies") and _helps(view, task, left, new):
                del soonest[task.shard]
                reason = f"duplicated: {in_words(left)} on {task.worker}, {new:.1f} s on {worker}"
                duplicates.append(Assignment(shard=task.shard, worker=worker, reason=reason))
                break
        else:
            break  # what does not help with this worker does not with a slower one
    return duplicates


def _helps(view: RoundView, task: RunningTask, left: float, new: float) -> bool:
    """Whether a duplicate saves time and resources, with some certainty."""
    least = new * (task.copies + 1) / task.copies
    if task.remaining is None:
        return left > least
    return chance_above(task.remaining, least + task.reported_seconds) > number(
        view, OPTIONS, "chance"
    )


def _needless(view: RoundView, outlook: Outlook) -> list[Withdrawal]:
    """Stop what would end clearly later than another attempt at the same shard."""
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
    """Return what runs and is not being handed over, with the seconds left, longest first."""
    found = []
    for task in view.running:
        left = outlook.left_seconds(task)
        if left is not None and task.meant_for is None:
            found.append((left, task))
    return sorted(found, key=lambda entry: (-entry[0], entry[1].shard))


MANTRI = Policy(
    decide=_mantri,
    watches=True,
    options=OPTIONS,
    summary="restart or duplicate what takes longer than anew (Mantri)",
)
