"""What is to be expected of a round: how fast everybody is, and when each shard will be done.

A forecast is believed first, then what was measured in this round, then what was forecast for a
worker's beginning, and in the end the middle of what is known of the others. Where nothing at all
is known, a speed is None. What makes no step takes infinitely long; nothing is ever NaN.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from itertools import pairwise
from math import ceil, floor, inf
from statistics import median
from typing import cast

from downpour.stragglers.base import Option, RoundView, RunningTask
from downpour.values import Forecast

# How much of a usual task is to be seen of a worker before its rate counts for more than its past.
TRUSTED_SHARE = 0.05


class Outlook:
    """A round's expectations, worked out of one view; speeds are samples a second."""

    def __init__(self, view: RoundView) -> None:
        self._view = view

    @cached_property
    def pace_seconds(self) -> float | None:
        """Seconds a sample, in the middle of all that is known; None where nothing is."""
        view = self._view
        known = [seconds / samples for samples, seconds in view.published if samples > 0]
        known += [1 / (t.rate * t.samples) for t in view.running if t.rate * t.samples > 0]
        known = known or [forecast.q50 for forecast in view.paces.values()]
        known = [pace for pace in known if 0 < pace < inf]
        return median(known) if known else None

    @cached_property
    def typical_seconds(self) -> float | None:
        """How long the middle one of this round's shards takes, from assignment to update."""
        view = self._view
        whole = [self._whole_seconds(task) for task in view.running]
        known = [seconds for _, seconds in view.published] + [t for t in whole if t is not None]
        if not known and self.pace_seconds is not None:
            known = [self.pace_seconds * task.samples for task in view.pending]
        known = [seconds for seconds in known if seconds > 0]
        found = median(known) if known else None
        return found if found is not None and found < inf else None

    @cached_property
    def speeds(self) -> dict[str, float]:
        """The speed of everybody who is training, by worker; 0 of those that make no step."""
        found = ((task.worker, self._speed_of(task)) for task in self._view.running)
        return {worker: speed for worker, speed in found if speed is not None}

    def speed(self, worker: str) -> float | None:
        """Return how fast a worker is, or would be with its next shard; None if unknown."""
        if worker in self.speeds:
            return self.speeds[worker]
        measured = self._view.speeds.get(worker, 0.0)
        return measured if measured > 0 else self._prior(worker)

    def fastest_first(self, workers: Iterable[str]) -> list[str]:
        """Return workers in falling order of speed, those of unknown speed last."""
        return sorted(workers, key=lambda name: -(self.speed(name) or 0.0))

    def left_seconds(self, task: RunningTask) -> float | None:
        """Return the seconds from now until a running shard has its update; None if unknown."""
        speed = self.speeds.get(task.worker)
        if speed is None:
            return None
        if speed <= 0:
            return inf
        return max((1 - task.done) * task.samples / speed - task.reported_seconds, 0.0)

    def total_seconds(self, task: RunningTask) -> float | None:
        """Return the seconds from a running shard's assignment to its update; None if unknown."""
        left = self.left_seconds(task)
        return None if left is None else task.elapsed_seconds + left

    def seconds_for(self, samples: float, worker: str) -> float:
        """Return how long a worker would take for so many samples; infinitely if unknown."""
        speed = self.speed(worker)
        return samples / speed if speed is not None and speed > 0 else inf

    def _whole_seconds(self, task: RunningTask) -> float | None:
        """Return how long a task takes if all of it is done as the present part of it is."""
        total = self.total_seconds(task)
        return None if total is None or task.began_at >= 1 else total / (1 - task.began_at)

    def _speed_of(self, task: RunningTask) -> float | None:
        # Between two steps of a large model nothing moves: that alone is no speed of zero.
        lately = self._view.speeds.get(task.worker, 0.0)
        if lately > 0:
            return lately
        if task.remaining is not None and task.remaining.q50 > 0:
            return (1 - task.done) * task.samples / task.remaining.q50
        return self._measured(task)

    def _measured(self, task: RunningTask) -> float | None:
        """Return its average speed; what is expected of the worker counts until enough is seen."""
        prior = self._prior(task.worker)
        seconds = task.elapsed_seconds - task.reported_seconds
        if prior is None or prior <= 0:
            return task.rate * task.samples if task.rate > 0 else None
        trained = (task.done - task.began_at) * task.samples
        trust = TRUSTED_SHARE * task.samples
        return max((trained + trust) / (max(seconds, 0.0) + trust / prior), 0.0)

    def _prior(self, worker: str) -> float | None:
        """Return the speed that a worker is expected to begin with."""
        forecast = self._view.paces.get(worker)
        if forecast is not None and 0 < forecast.q50 < inf:
            return 1 / forecast.q50
        return 1 / self.pace_seconds if self.pace_seconds else None


def number(view: RoundView, defaults: Mapping[str, Option], name: str) -> float:
    """Return an option of the view, or its default; which are numbers, as `check_policy` saw to."""
    return float(cast("float", view.options.get(name, defaults[name])))


def in_words(left_seconds: float) -> str:
    """Say what is left of a running shard, for a reason."""
    return f"{left_seconds:.1f} s left" if left_seconds < inf else "makes no step"


def quantile(values: Collection[float], share: float) -> float:
    """Return the value that so large a share of them lies below, interpolated; 0 of none."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    place = min(max(share, 0.0), 1.0) * (len(ordered) - 1)
    low, high = ordered[floor(place)], ordered[ceil(place)]
    return low if low == high else low + (high - low) * (place - floor(place))


def chance_above(forecast: Forecast, seconds: float) -> float:
    """Return the chance that something forecast takes longer than that, in 0..1."""
    points = ((forecast.q10, 0.9), (forecast.q50, 0.5), (forecast.q90, 0.1), (forecast.q98, 0.02))
    if seconds < points[0][0]:
        return 1.0
    for (low, before), (high, after) in pairwise(points):
        if low <= seconds < high:
            return before + (after - before) * (seconds - low) / (high - low)
    return 0.0


def copied(running: Iterable[RunningTask]) -> int:
    """Return how many attempts run beside another one of the same shard."""
    shards = [task.shard for task in running]
    return len(shards) - len(set(shards))
