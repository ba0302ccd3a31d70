"""Gradient coding, computed on the conditions: nobody here could train with it.

A code lets a round end when enough workers have answered, whoever they are, because each worker
does the work of several shards. That needs sums of gradients, which local training over a whole
shard does not give; so codes exist in comparisons only.

*Gradient coding* (Tandon et al. 2017), by fractional repetition: whoever `s` of the workers are
missing, the sum comes out exactly, at s + 1 times the work. *Stochastic gradient coding* (Bitar,
Wootters, El Rouayheb): every sample lies on two workers drawn at random, and what has not arrived
when all but `s` workers have is left out.
"""

from __future__ import annotations

from collections.abc import Callable

from downpour.policylab.conditions import Conditions
from downpour.policylab.ledger import RoundOutcome

TOLERATED = 1
COPIES = 2
LEFT_OUT = 2

Code = Callable[[Conditions, int], RoundOutcome]


def gradient_coding(conditions: Conditions, number: int) -> RoundOutcome:
    """Return what a round comes to when every worker does two shards and one may be missing."""
    return _coded(conditions, number, load=TOLERATED + 1, missing=TOLERATED, lost=0.0)


def stochastic_gradient_coding(conditions: Conditions, number: int) -> RoundOutcome:
    """Return what a round comes to when every sample lies on two workers and two are left out.

    A sample is lost where both of its workers are.
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
