"""`fedasync`: the newest version moves toward every update at once (Xie et al. 2019, alg. 1).

x ← (1 - a) x + a x_new with a = alpha s(τ). So the version moves toward the update's parameters,
and not by the update's step.
"""

from __future__ import annotations

from downpour.base.errors import SpecError
from downpour.core.modes.base import Mode, ModeKind, Options
from downpour.core.modes.staleness import STALENESS, number, staleness_of


def _make(options: Options, _shards: int) -> Mode:
    alpha, weight = number(options, "alpha"), staleness_of(options)
    if not 0 < alpha <= 1:
        raise SpecError("mode_options.alpha", alpha, "must be above 0 and at most 1")
    return Mode(
        together=1, ahead=None, weight=lambda staleness: alpha * weight(staleness), mixes=True
    )


FEDASYNC = ModeKind(make=_make, options={"alpha": 0.6, **STALENESS, "staleness": "polynomial"})
