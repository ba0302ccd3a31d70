"""When an experiment's rounds ended, and the seconds that the others will take."""

import math
from collections import deque
from dataclasses import dataclass, field
from statistics import fmean, stdev

ROUNDS_MAX = 30
"""Only this many last rounds count, because workers come, go and slow down."""
_T90 = (3.078, 1.886, 1.638, 1.533, 1.476, 1.440, 1.415, 1.397, 1.383, 1.372)
_T90_MANY = 1.30
"""For 11 to 29 degrees of freedom. Their quantiles fall from 1.363 to 1.311."""


@dataclass(slots=True, eq=False)
class RoundTimes:
    """The seconds of the last rounds, each from the end of the round before."""

    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=ROUNDS_MAX))
    count: int = 0
    last_at: float | None = None

    def close(self, at_seconds: float, began_at_seconds: float | None) -> None:
        """Note the end of a round; the first one counts from its own beginning."""
        since = began_at_seconds if self.last_at is None else self.last_at
        if since is not None:
            self.seconds.append(at_seconds - since)
        self.last_at = at_seconds
        self.count += 1

    def left(self, rounds: int, now_seconds: float) -> tuple[float, float, float] | None:
        """Return the quantiles 0.1, 0.5 and 0.9 of the seconds that the remaining rounds take.

        We assume that the remaining rounds are like the last ones: independent draws from one
        normal distribution. We estimate its mean m and deviation s from n rounds. With probability
        0.8, the sum of k further draws is within k m ± t s √(k + k²/n). Here t is the quantile 0.9
        of Student's t with n - 1 degrees of freedom. In the root, k stands for the noise of each
        round. The term k²/n is the error of the mean, which we know only from n rounds. The
        interval is wide after two rounds, and gets narrower with each round.

        Args:
            rounds: the number of all rounds.
            now_seconds: the present, on the clock of the ends.

        Returns:
            The quantiles; None while fewer than two rounds have ended.
        """
        known, left = len(self.seconds), rounds - self.count
        if self.last_at is None or known < 2 or left < 0:
            return None
        t = _T90[known - 2] if known - 2 < len(_T90) else _T90_MANY
        margin = t * stdev(self.seconds) * math.sqrt(left + left**2 / known)
        middle = left * fmean(self.seconds) - (now_seconds - self.last_at)
        low, q50, high = (
            round(max(0.0, each), 1) for each in (middle - margin, middle, middle + margin)
        )
        return low, q50, high
