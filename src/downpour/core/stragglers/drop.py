"""`drop`: end the round with the fastest k of n shards (k-sync, Dutta et al.).

The scheduler tells late workers to stop. The gradient of their shards is lost for this round.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from downpour.core.stragglers.base import Action, Close, Option, Policy, RoundView
from downpour.core.stragglers.outlook import number
from downpour.core.stragglers.pairing import pair

OPTIONS: Mapping[str, Option] = {"k": 0.9}


def _drop(view: RoundView) -> list[Action]:
    needed = _needed(view)
    if needed <= len(view.published) < view.shards:
        late = view.shards - len(view.published)
        reason = f"{len(view.published)} of {view.shards} updates are there; {late} dropped"
        return [Close(reason=reason)]
    return [*pair(view)]


def _needed(view: RoundView) -> int:
    """Return how many updates are enough; `k` is a share up to 1, and a count above 1."""
    k = number(view, OPTIONS, "k")
    # We subtract a little, because 0.28 * 25 is 7.000000000000001 and would require an eighth.
    count = ceil(k * view.shards - 1e-9) if k <= 1 else int(k)
    # At least one, because the scheduler does not close a round without an update.
    return min(max(count, 1), max(view.shards, 1))


DROP = Policy(
    decide=_drop,
    watches=True,
    preserves_bytes=False,
    options=OPTIONS,
)
