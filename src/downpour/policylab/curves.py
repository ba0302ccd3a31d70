"""How much work is done by when: lines through points, going on as they ended.

Work is counted in whole shards of the usual size. A task is a stretch of its host's curve, so one
that is cut at any point, and gone on with by the same host, ends when it would have ended.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


class Curve:
    """What a host would have done by each moment, in shards; seconds run from a round's beginning.

    Args:
        seconds: when, ascending, beginning with 0.
        done: how much by then, not descending, beginning with 0.

    Raises:
        ValueError: the points are not such, or the curve does not rise at its end.
    """

    __slots__ = ("_done", "_rate", "_seconds")

    def __init__(self, seconds: Sequence[float], done: Sequence[float]) -> None:
        pairs = list(zip(seconds, done, strict=True))
        steps = list(pairwise(pairs))
        if not steps or pairs[0] != (0.0, 0.0):
            raise ValueError("a curve has two points at least, and begins with nothing done")
        if any(after[0] <= before[0] or after[1] < before[1] for before, after in steps):
            raise ValueError("a curve's time must pass, and its work not shrink")
        (from_seconds, from_done), (to_seconds, to_done) = steps[-1]
        self._rate = (to_done - from_done) / (to_seconds - from_seconds)
        if self._rate <= 0:
            raise ValueError("a curve must rise at its end")
        self._seconds = list(seconds)
        self._done = list(done)

    def done(self, seconds: float) -> float:
        """Return how much is done by then."""
        return _read(self._seconds, self._done, self._rate, seconds)

    def when(self, done: float) -> float:
        """Return when so much is done, the latest moment where there are several."""
        return _read(self._done, self._seconds, 1.0 / self._rate, done)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A task on a curve: begun then, so much work; its `seconds` run from there."""

    curve: Curve
    begun_at: float
    work: float

    @property
    def seconds(self) -> float:
        """How long it takes."""
        return self.when(1.0)

    def share(self, seconds: float) -> float:
        """Return how much of it is done after so long, in 0..1."""
        so_far = self.curve.done(self.begun_at + seconds) - self.curve.done(self.begun_at)
        return min(1.0, so_far / self.work)

    def when(self, share: float) -> float:
        """Return after how long so much of it is done."""
        return self.curve.when(self.curve.done(self.begun_at) + share * self.work) - self.begun_at


def _read(known: list[float], wanted: list[float], rate: float, at: float) -> float:
    place = bisect_right(known, at)
    if place == len(known):
        return wanted[-1] + (at - known[-1]) * rate
    before, after = place - 1, place
    share = (at - known[before]) / (known[after] - known[before])
    return wanted[before] + share * (wanted[after] - wanted[before])
