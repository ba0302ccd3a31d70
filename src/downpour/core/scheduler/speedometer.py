"""Measures how fast and how steady a worker is, over the last few reports of its attempts."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from itertools import pairwise

from downpour.base.values import Progress
from downpour.core.stragglers import Speed

# We use few reports, because old ones hide that a machine has just become slow.
_REPORTS_REMEMBERED = 5
_REPORTS_FOR_SPEED = 2
_INTERVALS_FOR_VARIANCE = 2


@dataclass(frozen=True, slots=True)
class _Report:
    """One report: when it came, when the last step ended by the worker's clock, and the share."""

    at_seconds: float
    stepped_seconds: float
    share: float


class Speedometer:
    """Measures one worker, attempt by attempt."""

    def __init__(self) -> None:
        self._samples = 0
        self._steps = 0
        self._reports: deque[_Report] = deque(maxlen=_REPORTS_REMEMBERED)
        self._still_seconds = 0.0
        self._former: tuple[Speed, float] | None = None

    def begin(self, samples: int) -> None:
        """Restart the measurement for a shard of this many samples."""
        self._former = self._latest()
        self._samples = samples
        self._still_seconds = 0.0
        self._reports.clear()

    def report(self, progress: Progress, at_seconds: float) -> None:
        """Take in a report if it has a new step."""
        # While the worker loads, it does not know yet how many steps the snapshot holds.
        if not progress.steps_total:
            return
        self._steps = progress.steps_total
        report = _Report(at_seconds, progress.elapsed_seconds, progress.share)
        last = self._reports[-1] if self._reports else None
        if last is None or report.stepped_seconds > last.stepped_seconds:
            self._reports.append(report)
            last = report
        self._still_seconds = at_seconds - last.at_seconds

    def speed(self, now_seconds: float, *, busy: bool) -> Speed | None:
        """Return the speed over the last few reports; None before any attempt has sent two.

        The speed of a `busy` worker falls while its next report is overdue. The speed of an idle
        worker stays, because no step is due, but its age grows. If an attempt ended before its
        first step, we know only how fast the worker is `at_most`.
        """
        if busy and len(self._reports) >= _REPORTS_FOR_SPEED:
            return self._measured(self._overdue_seconds(now_seconds))
        latest = self._latest()
        if latest is None:
            return None
        speed, at_seconds = latest
        return replace(speed, age_seconds=max(0.0, now_seconds - at_seconds))

    def _latest(self) -> tuple[Speed, float] | None:
        """Return the last measured speed, and the time of its measurement."""
        if len(self._reports) >= _REPORTS_FOR_SPEED:
            return self._measured(0.0), self._reports[-1].at_seconds
        bound = self._bound()
        if bound is None or self._is_below(bound):
            return self._former
        return bound, self._reports[-1].at_seconds + self._still_seconds

    def _is_below(self, bound: Speed) -> bool:
        """Whether an earlier measured speed is no faster than a bound, and so says more."""
        if self._former is None or self._former[0].at_most:
            return False
        return self._former[0].samples_per_second <= bound.samples_per_second

    def _bound(self) -> Speed | None:
        """Return the speed if a step took the whole time without one; None without such a time.

        The scheduler stops an attempt when a copy of it finishes first. If we knew nothing of a
        worker that never reaches its first step, it would get a shard in each round.
        """
        if not self._reports or self._still_seconds <= 0:
            return None
        share = 1 / self._steps
        return Speed(
            samples_per_second=self._samples * share / self._still_seconds,
            share=share,
            step_seconds=self._still_seconds,
            at_most=True,
        )

    def _overdue_seconds(self, now_seconds: float) -> float:
        # Only overdue reports go by the manager's clock. The worker's clock times the steps,
        # because a delayed message must not change the speed.
        first, last = self._reports[0], self._reports[-1]
        usual_gap = (last.at_seconds - first.at_seconds) / (len(self._reports) - 1)
        return max(0.0, now_seconds - last.at_seconds - usual_gap)

    def _measured(self, overdue_seconds: float) -> Speed:
        first, last = self._reports[0], self._reports[-1]
        share = last.share - first.share
        seconds = last.stepped_seconds - first.stepped_seconds + overdue_seconds
        per_second = self._samples * share / seconds
        return Speed(
            samples_per_second=per_second,
            share=share,
            variance=self._variance(),
            step_seconds=seconds / (share * self._steps) if share > 0 else 0.0,
        )

    def _variance(self) -> float | None:
        """Estimate `Speed.variance` from the intervals between reports; None for fewer than two.

        We treat an interval as a sum of independent steps, so its variance grows with the share
        that the worker trained in it.
        """
        intervals = [
            (later.share - earlier.share, later.stepped_seconds - earlier.stepped_seconds)
            for earlier, later in pairwise(self._reports)
            if later.share > earlier.share
        ]
        if len(intervals) < _INTERVALS_FOR_VARIANCE:
            return None
        whole = sum(seconds for _, seconds in intervals) / sum(share for share, _ in intervals)
        squares = sum((seconds - share * whole) ** 2 / share for share, seconds in intervals)
        return squares / (len(intervals) - 1) / whole**2
