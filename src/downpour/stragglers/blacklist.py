"""`blacklist`: workers that were slow in the last rounds get nothing.

The few slowest are left out, and only so many that the others can do the work; where nobody else
is there, or nobody else is left for a shard, they get it after all. What they were in the rounds
before stays known, and nothing newer comes: a worker that was left out stays so.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from downpour.stragglers.base import Action, Option, Policy, RoundView
from downpour.stragglers.outlook import number
from downpour.stragglers.pairing import pair_among

OPTIONS: Mapping[str, Option] = {"slowness": 1.5, "rounds": 5, "at_most": 0.34}


def _blacklist(view: RoundView) -> list[Action]:
    out = _left_out(view)
    fit = [name for name in view.idle if name not in out]
    why = ", ".join(f"{name} {out[name]:.1f} times the median" for name in sorted(out))
    return [*pair_among(view, fit, f"left out for being slow: {why}" if why else "")]


def _left_out(view: RoundView) -> dict[str, float]:
    """Return who gets nothing, and how slow each was; the slowest, where there are too many."""
    rounds = max(int(number(view, OPTIONS, "rounds")), 1)
    limit = number(view, OPTIONS, "slowness")
    slow: dict[str, float] = {}
    for name in view.workers:
        history = view.history.get(name)
        latest = history.slowness[-rounds:] if history is not None else ()
        if len(latest) == rounds and median(latest) > limit:
            slow[name] = median(latest)
    room = int(number(view, OPTIONS, "at_most") * len(view.workers))
    return dict(sorted(slow.items(), key=lambda entry: (-entry[1], entry[0]))[:room])


BLACKLIST = Policy(
    decide=_blacklist,
    watches=True,
    options=OPTIONS,
    summary="workers that were slow in the last rounds get nothing",
)
