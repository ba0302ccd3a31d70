"""`ssp`: like `downpour`, but no shard gets more than `bound` rounds ahead of the slowest one.

Stale synchronous parallel (Ho et al. 2013, sec. 3); with bound 0, all shards train the same round.
"""

from __future__ import annotations

from downpour.core.modes.base import Mode, ModeKind, Options
from downpour.core.modes.staleness import STALENESS, STEP, number, staleness_of, step_of


def _make(options: Options, shards: int) -> Mode:
    bound, step, weight = (
        int(number(options, "bound")),
        step_of(options, shards),
        staleness_of(options),
    )
    return Mode(together=1, ahead=bound, weight=lambda staleness: step * weight(staleness))


SSP = ModeKind(make=_make, options={"bound": 2, **STEP, **STALENESS})
