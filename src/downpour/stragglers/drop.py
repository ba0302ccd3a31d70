"""`drop`: the fastest k of n count (k-sync). The round is over when they are there.

Whoever is late is told to stop, and what its shard would have taught is lost for this round.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from downpour.stragglers.base import Action, Close, Option, Policy, RoundView
from downpour.stragglers.outlook import number
from downpour.stragglers.pairing import pair

OPTIONS: Mapping[str, Option] = {"k": 0.9}


def _drop(view: RoundView) -> list[Action]:
    needed = _needed(view)
    if needed <= len(view.published) < view.shards:
        late = view.shards - len(view.published)
        reason = f"{len(view.published)} of {view.shards} are there, {late} are dropped"
        return [Close(reason=reason)]
    return [*pair(view)]


def _needed(view: RoundView) -> int:
    """Return how many updates are enough: a share up to 1, or a number above it."""
    k = number(view, OPTIONS, "k")
    count = ceil(k * view.shards - 1e-9) if k <= 1 else int(k)
    return min(max(count, 1), max(view.shards, 1))


DROP = Policy(
    decide=_drop,
    watches=True,
    preserves_bytes=False,
    options=OPTIONS,
    summary="the fastest k shards count, the others are dropped",
)
