"""Gradient coding, computed from the conditions: Downpour cannot train with it.

A code lets a round end when enough workers have answered, no matter which ones, because each worker
does the work of several shards. Codes need sums of gradients, which local training over a whole
shard doesn't produce. So we use codes only in comparisons.

*Gradient coding* (Tandon et al. 2017), by fractional repetition: any `s` workers may be missing,
and the sum is still exact, at s + 1 times the work. *Stochastic gradient coding* (Bitar, Wootters,
El Rouayheb): each sample is on two workers drawn at random, and the round ends without the last
`s` workers.
"""

from __future__ import annotations

from collections.abc import Callable

from downpour.virtual.policylab.conditions import Conditions
from downpour.virtual.policylab.ledger import RoundOutcome

TOLERATED = 1
COPIES = 2
LEFT_OUT = 2

Code = Callable[[Conditions, int], RoundOutcome]


def gradient_coding(conditions: Conditions, number: int) -> RoundOutcome:
    """Return the outcome of a round with two shards per worker, in which one may be missing."""
    return _coded(conditions, number, load=TOLERATED + 1, missing=TOLERATED, lost=0.0)


def stochastic_gradient_coding(conditions: Conditions, number: int) -> RoundOutcome:
    """Return the outcome of a round with two workers per sample, which leaves out two workers.

    A sample is lost if the round leaves out both of its workers.
    """
    hosts = conditions.hosts
    lost = LEFT_OUT * (LEFT_OUT - 1) / (hosts * (hosts - 1))
    return _coded(conditions, number, load=COPIES, missing=LEFT_OUT, lost=lost)


CODES: dict[str, Code] = {
    "gradient-coding": gradient_coding,
    "stochastic-coding": stochastic_gradient_coding,
}


def _coded(
    conditions: Conditions, number: int, *, load: int, missing: int, lost: float
) -> RoundOutcome:
    curves = [conditions.curve(number, host) for host in range(conditions.hosts)]
    ends = sorted(curve.when(float(load)) for curve in curves)
    seconds = ends[len(ends) - 1 - missing]
    return RoundOutcome(
        seconds=seconds,
        lost=lost,
        busy_seconds=sum(min(end, seconds) for end in ends),
        useful_seconds=sum(curve.when(1.0) for curve in curves),
        updates=conditions.hosts - missing,
    )
