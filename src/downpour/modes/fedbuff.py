"""`fedbuff` and `k-async`: the first k updates become a version, from whichever shards they are.

FedBuff (Nguyen et al. 2022, alg. 1) weights each by (1 + τ)^-1/2, k-async SGD (Dutta et al. 2018,
sec. 2) counts all alike. A worker whose shard waits for the version trains another shard, if there
are more shards than workers.
"""

from __future__ import annotations

from math import ceil

from downpour.modes.base import Mode, ModeKind, Options
from downpour.modes.staleness import STALENESS, number, staleness_of


def _make(options: Options, shards: int) -> Mode:
    k = number(options, "k")
    # Less a trifle, because 0.28 * 25 is 7.000000000000001, which would ask for an eighth.
    count = ceil(k * shards - 1e-9) if k <= 1 else int(k)
    return Mode(together=min(max(count, 1), shards), ahead=None, weight=staleness_of(options))


FEDBUFF = ModeKind(
    make=_make,
    options={"k": 0.5, **STALENESS, "staleness": "polynomial"},
    summary="the first k updates become a version, stale ones counting less",
)
K_ASYNC = ModeKind(
    make=_make,
    options={"k": 0.5, **STALENESS},
    summary="the first k updates become a version, all counting alike",
)
