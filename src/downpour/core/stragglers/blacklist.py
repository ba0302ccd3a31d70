"""`blacklist`: workers that were slow in the last rounds get no shards.

Only the slowest are left out, and at most a share of all workers, so that the others can do the
work. They still get shards if no other worker is there. A worker that was left out stays
so: it trains nothing that could show that it has recovered.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from downpour.core.stragglers.base import ROUNDS_REMEMBERED, Action, Option, Policy, RoundView
from downpour.core.stragglers.outlook import number
from downpour.core.stragglers.pairing import pair_among

OPTIONS: Mapping[str, Option] = {"slowness": 1.5, "rounds": 5, "at_most": 0.34}


def _blacklist(view: RoundView) -> list[Action]:
    out = _left_out(view)
    fit = [name for name in view.idle if name not in out]
    why = ", ".join(f"{name} {out[name]:.1f} times the median" for name in sorted(out))
    return [*pair_among(view, fit, f"left out for being slow: {why}" if why else "")]


def _left_out(view: RoundView) -> dict[str, float]:
    """Return the workers to leave out, slowest first, and the median slowness of each."""
    rounds = max(int(number(view, OPTIONS, "rounds")), 1)
    limit = number(view, OPTIONS, "slowness")
    slow: dict[str, float] = {}
    for name in view.workers:
        history = view.history.get(name)
        latest = history.slowness[-rounds:] if history is not None else ()
        # The median of all the rounds asked for, because one slow round is no slow worker.
        if len(latest) == rounds and median(latest) > limit:
            slow[name] = median(latest)
    room = int(number(view, OPTIONS, "at_most") * len(view.workers))
    # By name where two are equally slow, because a policy must not depend on a dictionary's order.
    return dict(sorted(slow.items(), key=lambda entry: (-entry[1], entry[0]))[:room])


BLACKLIST = Policy(
    decide=_blacklist,
    watches=True,
    options=OPTIONS,
    # More rounds than are remembered would never be seen, so no worker would ever be left out.
    largest={"rounds": ROUNDS_REMEMBERED},
)
