"""`wrangler`: whoever would straggle for sure waits, and is looked at again (Wrangler, 2014).

Nothing is copied and nothing is moved: a worker whose forecast lies above the limit with enough
confidence gets nothing yet. It is not put off for ever, and not where nobody else is there. The
paper learns its confidence from counters of the machine; here it comes from the forecast's
quantiles, which do, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from downpour.stragglers.base import Action, Option, Policy, RoundView
from downpour.stragglers.outlook import Outlook, chance_above, number
from downpour.stragglers.pairing import pair, pair_among

OPTIONS: Mapping[str, Option] = {"slowness": 1.3, "confidence": 0.7, "patience": 0.25}


def _wrangler(view: RoundView) -> list[Action]:
    typical = Outlook(view).typical_seconds
    patience = number(view, OPTIONS, "patience") * (typical or 0.0)
    deferred = _stragglers(view)
    if not deferred or view.elapsed_seconds > patience:
        return [*pair(view)]
    fit = [name for name in view.idle if name not in deferred]
    why = ", ".join(f"{name} straggles at {deferred[name]:.0%}" for name in sorted(deferred))
    return [*pair_among(view, fit, f"put off: {why}")]


def _stragglers(view: RoundView) -> dict[str, float]:
    """Return the idle that will straggle with enough confidence, and how sure that is."""
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
    summary="a worker that is sure to straggle gets nothing for a while (Wrangler)",
)
