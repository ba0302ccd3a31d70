"""Work done over time: lines through points, which continue with their last slope.

We count work in shards of the usual size. A task is a stretch of its host's curve. So if a task is
interrupted at any point, and the same host continues it, the task ends when it would have ended
without the interruption.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


class Curve:
    """The work of a host by each moment, in shards; seconds run from a round's beginning.

    Args:
        seconds: the times of the points, ascending, from 0.
        done: the work done by these times, not descending, from 0.

    Raises:
        ValueError: the points violate these rules, or the curve does not rise at its end.
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
        """Return the work done by a moment."""
        return _read(self._seconds, self._done, self._rate, seconds)

    def when(self, done: float) -> float:
        """Return when this much work is done; if at several moments, return the latest."""
        return _read(self._done, self._seconds, 1.0 / self._rate, done)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A task of some `work` on a curve, begun at some moment; seconds count from there."""

    curve: Curve
    begun_at: float
    work: float

    @property
    def seconds(self) -> float:
        """How long the task takes."""
        return self.when(1.0)

    def share(self, seconds: float) -> float:
        """Return the share of the task that is done after some seconds, in 0..1."""
        so_far = self.curve.done(self.begun_at + seconds) - self.curve.done(self.begun_at)
        return min(1.0, so_far / self.work)

    def when(self, share: float) -> float:
        """Return the seconds after which this share of the task is done."""
        return self.curve.when(self.curve.done(self.begun_at) + share * self.work) - self.begun_at


def _read(known: list[float], wanted: list[float], rate: float, at: float) -> float:
    place = bisect_right(known, at)
    if place == len(known):
        return wanted[-1] + (at - known[-1]) * rate
    before, after = place - 1, place
    share = (at - known[before]) / (known[after] - known[before])
    return wanted[before] + share * (wanted[after] - wanted[before])
