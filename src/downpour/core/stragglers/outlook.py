"""A policy's outlook on a round: the speed of each worker, and the end of each shard.

For a worker that trains, the outlook takes the speed over its last few heartbeats. Without one, it
takes the forecast for the worker's attempt, and without that, its average in this round. For an
idle worker, it mixes the last speed with the forecast for a new attempt, and forgets the last speed
with time. If it knows neither, it takes the median of the other workers, and if it knows nothing,
the speed is None. An attempt that makes no step takes infinitely long; no number is ever NaN.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from itertools import pairwise
from math import ceil, floor, inf, sqrt
from statistics import fmean, median
from typing import cast

from downpour.base.values import Forecast
from downpour.core.stragglers.base import RoundView, RunningTask, Speed

# After this share of a task, the worker's average in it counts as much as the expectation. Earlier,
# the average says little because it includes the loading time.
TRUSTED_SHARE = 0.05

# The relative error of a speed from only two reports. With it, the policy relieves a worker at a
# quarter of the usual speed after two steps, and a worker at half the usual speed only after more.
# On throttled processors (eight workers, 0.15 of a core each), single steps took twice the usual
# time by chance.
SINGLE_ERROR = 0.3

# The relative error of an idle worker's speed that was neither measured nor forecast. If it were
# larger, the round would not learn of a fast worker next to a slow one: of two workers, the median
# is half of each.
UNKNOWN_ERROR = 0.1

# The relative error of a speed that was measured long ago. A worker that was slow and has been idle
# since may be as fast as the others by now, or still slow. A try is worth it only if the possible
# gain is large.
STALE_ERROR = 0.5

# After this many tasks, an idle worker's measurements have half their weight. One task would be too
# few: on machines that stay unequal, each try begins with a slow worker. In a simulation on a
# recorded trace of unequal machines, `handoff` saved 88.2 % with one task and 89.5 % with four.
HALF_FORGOTTEN_TASKS = 4.0

# The same half-life in the worker's own steps; it applies if they take longer. Each new try costs
# one such step, or the wait for it, and comes after about four half-lives. All tries together then
# take a thirtieth of the time. We simulated steps as long as one and a half tasks of other workers:
# ten epochs took 8 % longer without this half-life, and no longer with it.
HALF_FORGOTTEN_STEPS = 8.0


# The minimum cost of a move or a copy, used without a measurement or if the measured cost is lower.
# A policy's knowledge of a worker is up to a tenth of a second old, because heartbeats come no more
# often.
LEAST_MOVE_SECONDS = 0.1


_ERRORS_OF_80_PERCENT = 1.2816  # of a normal distribution


class Outlook:
    """What to expect of a round, computed from one view; speeds are in samples per second."""

    def __init__(self, view: RoundView) -> None:
        self._view = view

    @cached_property
    def pace_seconds(self) -> float | None:
        """The median seconds per sample, from all we know of the round; None if we know nothing."""
        view = self._view
        paces = [1 / (t.rate * t.samples) for t in view.running if t.rate * t.samples > 0]
        # We use forecasts only without measurements, because the workers' present speeds say more.
        if not view.published.paces and not paces:
            paces = [forecast.q50 for forecast in view.paces.values()]
        return median_above_zero(view.published.paces, [pace for pace in paces if pace < inf])

    @cached_property
    def typical_seconds(self) -> float | None:
        """The median seconds of this round's shards, from assignment to update."""
        view = self._view
        # Running shards count as well: the fast workers publish first, and would lower the median.
        whole = [self._whole_seconds(task) for task in view.running]
        known = [seconds for seconds in whole if seconds is not None]
        if not view.published and not known and self.pace_seconds is not None:
            known = [self.pace_seconds * task.samples for task in view.pending]
        typical = median_above_zero(view.published.seconds, known)
        return typical if typical is not None and typical < inf else None

    @cached_property
    def speeds(self) -> dict[str, float]:
        """The speed of each worker that is training; 0 if it makes no step."""
        speeds = ((task.worker, self._speed_of(task)) for task in self._view.running)
        return {worker: speed for worker, speed in speeds if speed is not None}

    def speed(self, worker: str) -> float | None:
        """Return a worker's speed, or the expected speed of its next attempt; None if unknown."""
        return self.speeds[worker] if worker in self.speeds else self._expected(worker)

    def error(self, worker: str) -> float:
        """Return the relative standard error of a worker's speed.

        Without a measurement, the error is 0. If such a worker is idle and has no forecast either,
        we only guess that it is as fast as the others, so the error is `UNKNOWN_ERROR`. Without
        it, a policy gave shards of good workers to a new machine with a tenth of their speed.

        No worker counts as steadier than the average worker: with three reports, both intervals may
        be equal by chance.
        """
        measured = self._view.speeds.get(worker)
        if measured is None or measured.share <= 0 or measured.at_most:
            known = worker in self._view.paces or worker in self.speeds
            return 0.0 if known else UNKNOWN_ERROR
        usual = sqrt(self._usual_variance / measured.share)
        single = SINGLE_ERROR if measured.variance is None else 0.0
        own = sqrt((measured.variance or 0.0) / measured.share)
        stale = STALE_ERROR * (1 - self._freshness(measured))
        return min(max(single, own, usual) + stale, 1.0)

    def _freshness(self, measured: Speed) -> float:
        """Return how much a speed still tells, in 0..1; see `HALF_FORGOTTEN_TASKS` and `_STEPS`.

        We cannot measure a worker that stands by. If we never forgot its speed, it would get no
        other shard after it was slow once.
        """
        tasks = HALF_FORGOTTEN_TASKS * self._usual_task_seconds
        half_life = max(tasks, HALF_FORGOTTEN_STEPS * measured.step_seconds)
        return cast("float", 0.5 ** (measured.age_seconds / half_life if half_life > 0 else 0.0))

    def _is_fresh(self, measured: Speed) -> bool:
        """Whether a speed comes from this attempt, or from the one just before."""
        return measured.age_seconds <= self._usual_task_seconds

    @cached_property
    def _usual_task_seconds(self) -> float:
        running, pending = self._view.running, self._view.pending
        samples = [*(task.samples for task in running), *(task.samples for task in pending)]
        return (self.pace_seconds or 0.0) * median(samples) if samples else 0.0

    def _expected(self, worker: str) -> float | None:
        """Return how fast a worker will probably be with its next shard; None if unknown.

        A measurement counts with its share of a shard, and a forecast counts as in `_measured`. If
        the worker made no step, that gives an upper bound of its speed. With time, the lower
        quartile of the known speeds replaces both.
        """
        measured, prior = self._view.speeds.get(worker), self._prior(worker)
        if measured is None or measured.samples_per_second <= 0 or measured.share <= 0:
            return prior
        if measured.at_most:
            # A bound matters only if we would otherwise expect a faster worker.
            prior = prior or self._usual_speed
            if not prior:
                return None
            pace = max(1 / measured.samples_per_second, 1 / prior)
        else:
            pace = _mixed_pace(measured, prior)
        fresh = self._freshness(measured)
        usual = quantile(self._fresh_speeds, 0.25)
        return 1 / (fresh * pace + (1 - fresh) / usual) if usual > 0 else 1 / pace

    @cached_property
    def _fresh_speeds(self) -> list[float]:
        return [
            speed.samples_per_second
            for speed in self._view.speeds.values()
            if speed.samples_per_second > 0 and self._is_fresh(speed) and not speed.at_most
        ]

    @cached_property
    def _usual_speed(self) -> float | None:
        """The median of the speeds that were measured; None if there are none."""
        speeds = self._view.speeds.values()
        known = [one.samples_per_second for one in speeds if not one.at_most]
        return median(known) if known else None

    @cached_property
    def _usual_variance(self) -> float:
        known = [s.variance for s in self._view.speeds.values() if s.variance is not None]
        return fmean(known) if known else 0.0

    def fastest_first(self, workers: Iterable[str]) -> list[str]:
        """Sort workers by speed less its error, fastest first; those of unknown speed come last.

        We subtract the error because a shard that begins on a slow worker costs more than a fast
        worker that stands by.
        """
        names = list(workers)
        if len(names) > 1:
            names.sort(key=lambda name: -(self.speed(name) or 0.0) * (1 - self.error(name)))
        return names

    @property
    def move_seconds(self) -> float:
        """The cost of continuing a shard elsewhere: loading, publishing and messages."""
        return max(self._view.overhead_seconds, LEAST_MOVE_SECONDS)

    def may_pay(self, left_seconds: float) -> bool:
        """Whether moving or copying a shard with this much time left can gain anything."""
        return left_seconds > self.move_seconds

    def left_seconds(self, task: RunningTask) -> float | None:
        """Return the seconds from now until a running shard has its update; None if unknown."""
        # The worker has nothing to hand over yet, and we don't know if another would finish sooner.
        if task.is_starting:
            return None
        speed = self.speeds.get(task.worker)
        if speed is None:
            return None
        if speed <= 0:
            return inf
        # `done` comes from the last report. Since then, the worker has worked on the rest.
        return max((1 - task.done) * task.samples / speed - task.reported_seconds, 0.0)

    def latest_first(self, tasks: Iterable[RunningTask]) -> list[tuple[float, RunningTask]]:
        """Return the attempts without a hand-over, with the seconds that each has left."""
        left = [(self.left_seconds(task), task) for task in tasks if task.meant_for is None]
        known = [(seconds, task) for seconds, task in left if seconds is not None]
        return sorted(known, key=lambda entry: (-entry[0], entry[1].shard))

    def left_between(self, task: RunningTask) -> tuple[float, float] | None:
        """Return the 80 % interval of `left_seconds`, from the same source; None if unknown."""
        left = self.left_seconds(task)
        if left is None or left == inf:
            return None
        if self._steady_speed(task) is not None:
            half = _ERRORS_OF_80_PERCENT * self.error(task.worker) * left
            return max(left - half, 0.0), left + half
        if task.remaining is None or task.remaining.q50 <= 0:
            return None
        ahead = task.remaining.after(task.reported_seconds)
        return ahead.q10, ahead.q90

    def step_seconds(self, worker: str) -> float:
        """Return how long a worker's step takes, the longest wait for a hand-over; 0 if unknown."""
        measured = self._view.speeds.get(worker)
        return measured.step_seconds if measured is not None else 0.0

    def seconds_for(self, samples: float, worker: str) -> float:
        """Return the seconds that a worker would take for some samples; infinite if unknown."""
        speed = self.speed(worker)
        return samples / speed if speed is not None and speed > 0 else inf

    def _whole_seconds(self, task: RunningTask) -> float | None:
        """Return how long the whole task takes at the pace of this attempt at a part of it."""
        left = self.left_seconds(task)
        if left is None or task.began_at >= 1:
            return None
        return (task.elapsed_seconds + left) / (1 - task.began_at)

    def _steady_speed(self, task: RunningTask) -> float | None:
        """Return the speed over an attempt's last reports, if it was measured lately."""
        # A speed of 0 does not count: workers with a large model show it between two steps.
        lately = self._view.speeds.get(task.worker)
        if lately is None or lately.samples_per_second <= 0 or lately.at_most:
            return None
        return lately.samples_per_second if self._is_fresh(lately) else None

    def _speed_of(self, task: RunningTask) -> float | None:
        measured = self._steady_speed(task)
        if measured is not None:
            return measured
        # A forecast says nothing of the speed of an attempt that only publishes its update.
        if task.remaining is not None and task.remaining.q50 > 0 and task.done < 1:
            return (1 - task.done) * task.samples / task.remaining.q50
        return self._measured(task)

    def _measured(self, task: RunningTask) -> float | None:
        """Return an attempt's average speed, mixed with the expectation for its worker.

        The expectation counts like `TRUSTED_SHARE` of a task, done at the expected speed.
        """
        prior = self._expected(task.worker)
        seconds = task.elapsed_seconds - task.reported_seconds
        if not prior:
            return None  # no attempt has advanced, or its pace would be expected of all workers
        trained = (task.done - task.began_at) * task.samples
        trust = TRUSTED_SHARE * task.samples
        # A worker may report less than where it began.
        return max((trained + trust) / (max(seconds, 0.0) + trust / prior), 0.0)

    def _prior(self, worker: str) -> float | None:
        forecast = self._view.paces.get(worker)
        if forecast is not None and 0 < forecast.q50 < inf:
            return 1 / forecast.q50
        return 1 / self.pace_seconds if self.pace_seconds else None


def _mixed_pace(measured: Speed, prior: float | None) -> float:
    """Return the seconds per sample from the measurement and from the earlier expectation."""
    seconds, weight = measured.share / measured.samples_per_second, measured.share
    if prior:
        seconds, weight = seconds + TRUSTED_SHARE / prior, weight + TRUSTED_SHARE
    return seconds / weight


def in_words(left_seconds: float) -> str:
    """Return the text for a reason that says how much time an attempt has left."""
    return f"{left_seconds:.1f} s left" if left_seconds < inf else "makes no step"


def expected(seconds: float) -> str:
    """Return the text for a reason that says when an attempt is expected to end."""
    return f"forecast {seconds:.1f} s" if seconds < inf else "makes no step"


def quantile(values: Collection[float], share: float) -> float:
    """Return the interpolated value below which `share` of the values lie; 0 if there are none."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    place = min(max(share, 0.0), 1.0) * (len(ordered) - 1)
    low, high = ordered[floor(place)], ordered[ceil(place)]
    return low if low == high else low + (high - low) * (place - floor(place))


def chance_above(forecast: Forecast, seconds: float) -> float:
    """Return the forecast's chance of taking longer than `seconds`, in 0..1."""
    points = ((forecast.q10, 0.9), (forecast.q50, 0.5), (forecast.q90, 0.1), (forecast.q98, 0.02))
    # A forecast says nothing beyond its outermost quantiles. We assume a chance of 1 or 0 there.
    if seconds < points[0][0]:
        return 1.0
    for (low, before), (high, after) in pairwise(points):
        if low <= seconds < high:
            return before + (after - before) * (seconds - low) / (high - low)
    return 0.0


def median_above_zero(rising: Sequence[float], more: Iterable[float]) -> float | None:
    """Return the median of all numbers above 0; None if there are none.

    The first ones are in rising order. Of these, we leave out as many at both ends as cannot
    matter, because a round may have thousands.
    """
    few = [number for number in more if number > 0]
    first = bisect_right(rising, 0.0)
    ends = max(0, (len(rising) - first - len(few)) // 2 - 1)
    known = [*rising[first + ends : len(rising) - ends], *few]
    return median(known) if known else None
