"""`blacklist`: workers that were slow in the last rounds get no shards.

The policy leaves out only the slowest workers, and at most a share of all workers, so that the
others can do the work. Slow workers still get shards if no other worker is present. Once left out,
a worker stays out: it trains nothing that could show that it has recovered.
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
        # We use the median of all these rounds, because one slow round doesn't make a slow worker.
        if len(latest) == rounds and median(latest) > limit:
            slow[name] = median(latest)
    room = int(number(view, OPTIONS, "at_most") * len(view.workers))
    # If two are equally slow, names decide: a policy must not depend on a dictionary's order.
    return dict(sorted(slow.items(), key=lambda entry: (-entry[1], entry[0]))[:room])


BLACKLIST = Policy(
    decide=_blacklist,
    watches=True,
    options=OPTIONS,
    # The scheduler remembers no more rounds, so with a larger value, no worker would be left out.
    largest={"rounds": ROUNDS_REMEMBERED},
)
