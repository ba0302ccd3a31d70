"""`wrangler`: a worker that would probably straggle gets no shard for a while (Wrangler, 2014).

The policy copies and moves no shard. It defers a worker if the forecast is above the limit with
enough confidence. It does so only for a while, and not if all other workers are gone. The paper
learns its confidence from the machine's counters. Here the confidence comes from the quantiles of a
forecast, which also uses such counters.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from downpour.core.stragglers.base import Action, Option, Policy, RoundView
from downpour.core.stragglers.outlook import Outlook, chance_above, number
from downpour.core.stragglers.pairing import pair, pair_among

OPTIONS: Mapping[str, Option] = {"slowness": 1.3, "confidence": 0.7, "patience": 0.25}


def _wrangler(view: RoundView) -> list[Action]:
    typical = Outlook(view).typical_seconds
    patience = number(view, OPTIONS, "patience") * (typical or 0.0)
    deferred = _stragglers(view)
    # Don't wait forever: a shard that waits too long ends later than it would on the slow worker.
    if not deferred or view.elapsed_seconds > patience:
        return [*pair(view)]
    fit = [name for name in view.idle if name not in deferred]
    why = ", ".join(f"{name} straggles at {deferred[name]:.0%}" for name in sorted(deferred))
    return [*pair_among(view, fit, f"deferred: {why}")]


def _stragglers(view: RoundView) -> dict[str, float]:
    """Return the idle workers that will straggle with enough confidence, and the confidence."""
    # The median of one forecast is that forecast, so we have nothing to compare it with.
    if len(view.paces) < 2:
        return {}
    usual = median(pace.q50 for pace in view.paces.values())
    limit = number(view, OPTIONS, "slowness") * usual
    chances = {
        name: chance_above(view.paces[name], limit) for name in view.idle if name in view.paces
    }
    confidence = number(view, OPTIONS, "confidence")
    return {name: chance for name, chance in chances.items() if chance > confidence}


WRANGLER = Policy(
    decide=_wrangler,
    watches=True,
    options=OPTIONS,
)
