"""`sync` and `k-sync`: shards are in step, and each round begins from the version of the last one.

`sync` is local SGD with a barrier; with one meeting an epoch, FedAvg (McMahan et al. 2017). In
`k-sync` a round ends with the first k updates, and the rest of it is cancelled (Dutta et al. 2018,
sec. 2): its examples are not trained in that round, as with the policy `drop`.
"""

from __future__ import annotations

from downpour.core.modes.base import Mode, ModeKind
from downpour.core.modes.staleness import count_of

SYNC = ModeKind(make=lambda _options, _shards: Mode(together=None, ahead=0))
K_SYNC = ModeKind(
    make=lambda options, shards: Mode(
        together=None, ahead=0, enough=count_of(options, "k", shards)
    ),
    options={"k": 0.9},
)
