"""`clone`: train every shard several times from the start (Dolly, Ananthanarayanan 2013).

The number of copies follows from the chance that a worker straggles, and from the accepted risk of
a late round. The budget limits the share of the workers that train clones; standbys may be among
them. A worker that becomes idle later begins no clone, because that would be speculation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, expm1, log, log1p

from downpour.core.stragglers.base import Action, Assignment, Option, Policy, RoundView
from downpour.core.stragglers.outlook import number
from downpour.core.stragglers.pairing import left_idle, pair

OPTIONS: Mapping[str, Option] = {"straggling": 0.1, "risk": 0.05, "budget": 0.7}
# Without this limit, the number of copies would grow without bound as the chance of straggling
# approaches one.
COPIES_MAX = 16


def _clone(view: RoundView) -> list[Action]:
    assignments = pair(view)
    spare = left_idle(view, assignments)
    copies = min(_wanted(view), _affordable(view, assignments, len(spare)))
    # The policy clones all shards or none, as in the paper. The round waits for its last shard, so
    # one shard without a clone would make the others' clones useless.
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
    # All copies of one shard may straggle with the chance 1 - (1 - risk)^(1/n). With many shards,
    # this formula loses its digits, because the power is nearly one.
    each = -expm1(log1p(-risk) / view.shards)
    return min(max(ceil(log(each) / log(straggling)), 1), COPIES_MAX)


def _affordable(view: RoundView, assignments: Sequence[Assignment], spare: int) -> int:
    """Return how many copies of each shard the spare workers and the budget allow."""
    budget = int(number(view, OPTIONS, "budget") * len(view.workers))
    return 1 + min(spare, budget) // len(assignments) if assignments else 1


CLONE = Policy(
    decide=_clone,
    watches=True,
    options=OPTIONS,
)
