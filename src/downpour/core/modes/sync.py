"""`sync` and `k-sync`: shards are in step, and each round begins from the last round's version.

`sync` is local SGD with a barrier; with one meeting an epoch, it is FedAvg (McMahan et al. 2017).
In `k-sync` a round ends with the first k updates, and the scheduler cancels its other tasks (Dutta
et al. 2018, sec. 2). That round doesn't train their examples, as with the policy `drop`.
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
