"""The seconds of a round without a policy, and with perfect knowledge: computed, not simulated.

We measure all policies against these. The oracles know every host's curve beforehand. One gives
each shard to one host for good. One may also give second shards to hosts that have finished. One
divides the work as finely as it likes, which training in steps cannot.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import nsmallest
from statistics import median

from downpour.virtual.policylab.conditions import Conditions

STRAGGLER = 1.5
"""A straggler takes longer than this many times the round's median."""

# Each halving halves the error: after 50, it is below the rounding of the result.
_HALVINGS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """One round's seconds, without a policy and for each oracle.

    `wait` is the time of its slowest task, `ideal` of its median task, and `kind_ideal` of its
    slowest task that is no straggler.
    """

    wait: float
    ideal: float
    kind_ideal: float
    best_hosts: float
    whole_shards: float
    divided: float


def reference(conditions: Conditions, number: int, standbys: int) -> Reference:
    """Compute the reference seconds of a round."""
    hosts = conditions.hosts
    curves = [conditions.curve(number, host) for host in range(hosts + standbys)]
    alone = [curve.when(1.0) for curve in curves]
    usual = median(alone[:hosts])
    longest = max(alone)
    in_turn = (
        curve.when(float(shards))
        for curve in curves
        for shards in range(1, hosts + 1)
        if curve.when(float(shards)) <= longest
    )
    return Reference(
        wait=max(alone[:hosts]),
        ideal=usual,
        kind_ideal=max(seconds for seconds in alone[:hosts] if seconds <= STRAGGLER * usual),
        best_hosts=nsmallest(hosts, alone)[-1],
        whole_shards=nsmallest(hosts, in_turn)[-1],
        divided=_divided(conditions, number, standbys, longest),
    )


def _divided(conditions: Conditions, number: int, standbys: int, longest: float) -> float:
    curves = [conditions.curve(number, host) for host in range(conditions.hosts + standbys)]
    low, high = 0.0, longest
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        enough = sum(curve.done(middle) for curve in curves) >= conditions.hosts
        low, high = (low, middle) if enough else (middle, high)
    return high
