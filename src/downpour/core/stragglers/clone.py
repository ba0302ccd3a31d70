"""`clone`: every shard is trained several times from the start (Dolly, Ananthanarayanan 2013).

The number of copies follows from the chance that a worker straggles and the risk of a late round
that is accepted. The limit is the share of the workers that may train clones; standbys can serve
for that. A worker that becomes idle later begins no clone: that would be speculation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, expm1, log, log1p

from downpour.core.stragglers.base import Action, Assignment, Option, Policy, RoundView
from downpour.core.stragglers.outlook import number
from downpour.core.stragglers.pairing import left_idle, pair

OPTIONS: Mapping[str, Option] = {"straggling": 0.1, "risk": 0.05, "budget": 0.7}
# Because the number of copies grows without bound as the chance of straggling goes to one.
COPIES_MAX = 16


def _clone(view: RoundView) -> list[Action]:
    assignments = pair(view)
    spare = left_idle(view, assignments)
    copies = min(_wanted(view), _affordable(view, assignments, len(spare)))
    # All shards are cloned or none, as in the paper: the round waits for its last shard, so one
    # that has no clone would make the others' clones useless.
    if len(view.pending) > len(assignments) or copies < 2:
        return [*assignments]
    reason = f"{copies} copies of each shard from the start"
    shards = [choice.shard for choice in assignments] * (copies - 1)
    clones = []
    for shard in shards:
        worker = view.first_fit(shard, spare)
        if worker is not None:
            spare.remove(worker)
            clones.append(Assignment(shard=shard, worker=worker, reason=reason))
    return [*assignments, *clones]


def _wanted(view: RoundView) -> int:
    """Return the smallest c with 1 - (1 - p^c)^n at most the risk."""
    straggling = number(view, OPTIONS, "straggling")
    risk = number(view, OPTIONS, "risk")
    if not (0 < straggling < 1 and 0 < risk < 1) or view.shards < 1:
        return 1
    # 1 - (1 - risk)^(1/n) is how often all copies of one shard may straggle. Written out like that,
    # it loses its digits with many shards, because the power is nearly one.
    each = -expm1(log1p(-risk) / view.shards)
    return min(max(ceil(log(each) / log(straggling)), 1), COPIES_MAX)


def _affordable(view: RoundView, assignments: Sequence[Assignment], spare: int) -> int:
    """Return how many copies of each the spare workers and the budget allow."""
    budget = int(number(view, OPTIONS, "budget") * len(view.workers))
    return 1 + min(spare, budget) // len(assignments) if assignments else 1


CLONE = Policy(
    decide=_clone,
    watches=True,
    options=OPTIONS,
)
