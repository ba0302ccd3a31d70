"""Estimates an experiment's remaining time from the durations of its rounds.

We assume that the remaining rounds are like the last ones: independent draws from one normal
distribution. We estimate its mean m and deviation s from n rounds. With probability 0.8, the sum of
k further draws is within k m ± t s √(k + k²/n). Here t is the quantile 0.9 of Student's t with
n - 1 degrees of freedom. In the root, k stands for the noise of each round. The term k²/n is the
error of the mean, which we know only from n rounds. The interval is wide after two rounds, and gets
narrower with each round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

ROUNDS_MAX = 30
"""Only this many last rounds count, because workers come, go and slow down."""
_T90 = (3.078, 1.886, 1.638, 1.533, 1.476, 1.440, 1.415, 1.397, 1.383, 1.372)
_T90_MANY = 1.30
"""For 11 to 29 degrees of freedom. Their quantiles fall from 1.363 to 1.311."""


def time_left(durations: Sequence[float], left: int) -> dict[str, float] | None:
    """Return the quantiles 0.1, 0.5 and 0.9 of the seconds that the remaining rounds take.

    Args:
        durations: how long the last rounds took, in seconds.
        left: how many rounds remain.

    Returns:
        The quantiles by name; None while fewer than two rounds have ended.
    """
    count = len(durations)
    if count < 2 or left < 0:
        return None
    middle = left * fmean(durations)
    t = _T90[count - 2] if count - 2 < len(_T90) else _T90_MANY
    margin = t * stdev(durations) * math.sqrt(left + left**2 / count)
    low, high = max(0.0, middle - margin), middle + margin
    return {"q10": round(low, 1), "q50": round(middle, 1), "q90": round(high, 1)}
