"""The mean of several repetitions, with a 95 % interval by Student's t."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean, stdev

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean of `count` values; `half_width` of its interval is None for a single one."""

    mean: float
    half_width: float | None
    count: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Estimate | None:
        """Estimate from the measured values; None if there are none."""
        measured = [value for value in values if value is not None and math.isfinite(value)]
        if not measured:
            return None
        count = len(measured)
        if count == 1:
            return cls(measured[0], None, 1)
        error = stdev(measured) / math.sqrt(count)
        return cls(fmean(measured), t_quantile(count - 1) * error, count)


def t_quantile(degrees: int) -> float:
    """Return how many standard errors the 95 % interval reaches to either side of a mean."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, (1 + CONFIDENCE) / 2))
