"""`grass`: copies that save resources first, greedy copies near the end (GRASS, 2014).

In the resource-aware phase, a shard gets one more copy only if all its attempts together then take
less time. In the greedy phase, it gets one as soon as the copy would end sooner than the running
attempts. In the paper's terms, a round that waits for all shards has an error bound of zero. The
shard with the longest time left then goes first. The paper learns when to become greedy; here that
is an option.
"""

from __future__ import annotations

from collections.abc import Mapping

from downpour.core.stragglers.base import Action, Assignment, Option, Policy, RoundView, RunningTask
from downpour.core.stragglers.outlook import Outlook, in_words, number
from downpour.core.stragglers.pairing import left_idle, pair

OPTIONS: Mapping[str, Option] = {"greedy_after": 0.8, "copies": 3}


def _grass(view: RoundView) -> list[Action]:
    assignments = pair(view)
    # While shards wait for a worker, a copy would take one from them.
    if len(view.pending) > len(assignments):
        return [*assignments]
    outlook = Outlook(view)
    soonest = _soonest(view, outlook)
    copies = []
    for worker in outlook.fastest_first(left_idle(view, assignments)):
        for left, task in sorted(soonest.values(), key=lambda entry: (-entry[0], entry[1].shard)):
            # A copy continues from the last snapshot, which holds the share `saved`.
            new = outlook.seconds_for((1 - task.saved) * task.samples, worker)
            fits = view.may_train(worker, task.shard)
            if fits and _pays(view, task.copies, left, new):
                del soonest[task.shard]
                reason = _reason(left, task, worker, new)
                copies.append(Assignment(shard=task.shard, worker=worker, reason=reason))
                break
        else:
            break  # if no copy pays on this worker, none pays on a slower one
    return [*assignments, *copies]


def _soonest(view: RoundView, outlook: Outlook) -> dict[int, tuple[float, RunningTask]]:
    """Return, for each shard that may have one more copy, the attempt that will end first."""
    most = number(view, OPTIONS, "copies")
    soonest: dict[int, tuple[float, RunningTask]] = {}
    for task in view.running:
        left = outlook.left_seconds(task)
        if left is None or task.copies >= most or task.meant_for is not None:
            continue
        if task.shard not in soonest or left < soonest[task.shard][0]:
            soonest[task.shard] = (left, task)
    return {shard: entry for shard, entry in soonest.items() if outlook.may_pay(entry[0])}


def _pays(view: RoundView, copies: int, left: float, new: float) -> bool:
    greedy = len(view.published) >= number(view, OPTIONS, "greedy_after") * view.shards
    if greedy:
        return new < left
    # All attempts' time together: each takes `left` without one more copy, and `new` with it.
    return copies * left > (copies + 1) * new


def _reason(left: float, task: RunningTask, worker: str, new: float) -> str:
    return f"copied: {in_words(left)} on {task.worker}, {new:.1f} s on {worker}"


GRASS = Policy(
    decide=_grass,
    watches=True,
    options=OPTIONS,
)
