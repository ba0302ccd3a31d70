"""Statistics of every worker's past, and the inputs that learned predictors make from them.

All times are logarithms of seconds per sample, relative to the worker's own running rate (its
*base*). We handle rows in batches, because a batch costs little more than a single row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from downpour.predictor import features as f
from downpour.predictor.features import Array

MEMORY = 64  # tasks per worker
# About 5 kB per worker. We need a limit because each call may bring new names, as rented functions
# do.
WORKERS_MAX = 4096
# Rates of exponential means. Each mean begins as a plain one, with the rate `1 / (count + 1)`,
# until that falls below its own rate (at 0.15, for six tasks). So the first task soon weighs
# little.
_BASE_RATE = 0.15
_FAST_RATE, _MIDDLE_RATE = 0.6, 0.3
_WIDTHS = np.array([0.12, 0.35, 0.35, 0.15])  # of the kernel, in units of `_warped`
_AGE = 10.0  # tasks after which a time counts 1/e of a new one for `alike_lately`
# If few tasks had a similar state, the mean stays near the base, as if this much of one more task
# had taken exactly the base.
_PRIOR_WEIGHT = 0.3
# Inputs are limited to a factor of e^5 = 148, so that one absurd measurement can't outweigh the
# rest.
_LIMIT = 5.0

# The columns of a worker's statistics.
_COUNT, _BASE, _FAST, _MIDDLE, _LAST, _BEFORE, _TAIL, _HEAD, _SPREAD, _SIZE, _DRIFT = range(11)
_MEANS = slice(11, 15)
_PREVIOUS = slice(15, 19)
_STATISTICS = 19

INPUTS = (
    *(f"state_{name}" for name in f.STATE),
    *(f"missing_{name}" for name in f.STATE),
    *(f"usual_{name}" for name in f.STATE),
    *(f"previous_{name}" for name in f.STATE),
    "fullness", "fast", "middle", "last", "before_last", "tail", "head",
    "spread", "drift", "lowest", "median", "highest", "count", "unseen", "cluster", "cluster_last",
    "alike", "alike_lately", "alike_weight", "size",
    "alike_at_start", "share", "pace", "recent_pace", "lately_faster", "pace_alike", "alike_now",
    "without_report", "without_before",
    *(f"now_{name}" for name in f.STATE),
)  # fmt: skip
EVENTS = (
    "time", "time_cluster", "time_alike", "tail", "head", "size",
    *(f"during_{name}" for name in f.STATE),
    *(f"end_{name}" for name in f.STATE),
)  # fmt: skip


class Histories:
    """The past of all workers; number 0 stands for every unknown worker."""

    def __init__(self) -> None:
        self._index: dict[str, int] = {}
        # Room for sixteen workers at first. `add` doubles it when needed.
        self._statistics = np.zeros((16, _STATISTICS))
        self._times = np.zeros((16, MEMORY))
        self._states = np.zeros((16, MEMORY, 4))
        self._starts = np.zeros((16, MEMORY, 4))
        self._center: float | None = None
        self._center_last = 0.0

    def __len__(self) -> int:
        """Return how many workers have rows, including the row for unknown workers."""
        return len(self._index) + 1

    def find(self, workers: Sequence[str]) -> Array:
        """Return the workers' numbers (rows,); 0 for unknown workers."""
        return np.array([self._index.get(worker, 0) for worker in workers])

    def add(self, workers: Sequence[str]) -> Array:
        """Return the workers' numbers, giving new ones to unknown workers.

        Beyond `WORKERS_MAX`, forget the worker whose last task is the oldest.
        """
        for worker in workers:
            # We remove and reinsert the name, so that the dictionary is in the order of last tasks.
            number = self._index.pop(worker, 0)
            if not number and len(self._index) >= WORKERS_MAX:
                number = self._index.pop(next(iter(self._index)))
                self._statistics[number] = 0
            self._index[worker] = number or len(self._index) + 1
        while len(self._index) >= len(self._statistics):
            for name in ("_statistics", "_times", "_states", "_starts"):
                array = getattr(self, name)
                setattr(self, name, np.concatenate([array, np.zeros_like(array)]))
        return self.find(workers)

    def are_new(self, at: Array) -> Array:
        """Return which of these workers have finished no task, as booleans (rows,)."""
        new: Array = self._statistics[at, _COUNT] == 0
        return new

    def times_across_workers(self) -> Array:
        """Return each worker's last log seconds per sample, relative to the cluster's base."""
        seen = self._statistics[1 : len(self)]
        seen = seen[seen[:, _COUNT] > 0]
        return seen[:, _LAST] - np.median(seen[:, _BASE]) if len(seen) else np.zeros(0)

    def describe(self, at: Array, tasks: Array) -> tuple[Array, Array, Array]:
        """Return (inputs, base, log samples) of tasks on the workers `at`, one row each."""
        known = self._statistics[at]
        size = self._log_samples(known, tasks)
        base, center = self._bases(known, tasks, size)
        seen = known[:, _COUNT] > 0
        state, missing = _filled(tasks[:, f.ASSIGNED], known[:, _MEANS])
        during, _ = _filled(tasks[:, f.DURING], known[:, _MEANS])
        now, _ = _filled(tasks[:, f.NOW], state)
        alike, lately, weight = self._alike(self._states, at, known, base, during)
        alike_start, _, _ = self._alike(self._starts, at, known, base, state)
        pace, recent, share, reported, twice = _paces(tasks, base, size)
        alike_now = alike  # without a report, the state now is the state at assignment
        if reported.any():
            alike_now, _, _ = self._alike(self._states, at, known, base, now)
        # A new worker has no past: 0 means neither faster nor slower than its base.
        past = np.where(seen[:, None], known[:, _FAST : _HEAD + 1] - base[:, None], 0.0)
        inputs = np.concatenate(
            [
                _squeezed(state), missing, _squeezed(known[:, _MEANS]),
                _squeezed(known[:, _PREVIOUS]), -np.log(1.03 - np.minimum(state[:, 2:3], 1.0)),
                past, known[:, [_SPREAD, _DRIFT]], self._range(at, known, base),
                np.stack(
                    [
                        np.log1p(known[:, _COUNT]), ~seen, center - base,
                        np.full(len(at), self._center_last), alike, lately, weight,
                        np.where(seen, size - known[:, _SIZE], 0.0), alike_start, share, pace,
                        recent, recent - pace,
                        np.where(reported, recent - alike_now, 0.0), alike_now,
                        ~reported, ~twice,
                    ],
                    axis=1,
                ),
                _squeezed(now),
            ],
            axis=1,
        )  # fmt: skip
        return np.clip(inputs, -_LIMIT, _LIMIT).astype(np.float32), base + recent, size

    def learn(self, at: Array, tasks: Array, seconds: Array) -> Array:
        """Take in finished tasks of different workers, and return their rows of `EVENTS`."""
        known = self._statistics[at]
        size = self._log_samples(known, tasks)
        times = np.log(seconds) - size
        # We compare the outcome with the expectation at assignment, before any report.
        unreported = tasks.copy()
        unreported[:, f.SHARE] = np.nan
        base, center = self._bases(known, unreported, size)
        if self._center is None:  # we can compare the first tasks only with each other
            center = float(np.median(times))
            base = np.full(len(at), center)
        during, _ = _filled(tasks[:, f.DURING], known[:, _MEANS])
        end, _ = _filled(tasks[:, f.NOW], during)
        start, _ = _filled(tasks[:, f.ASSIGNED], known[:, _MEANS])
        alike, _, _ = self._alike(self._states, at, known, base, during)
        head, tail = _halves(tasks, seconds, size, times)
        offsets = [times - base, times - center, times - base - alike, tail - times, head - times]
        offsets.append(np.where(known[:, _COUNT] > 0, size - known[:, _SIZE], 0.0))
        self._remember(at, times, size, during, start, (tail, head), np.abs(offsets[2]))
        events = np.concatenate([np.stack(offsets, 1), _squeezed(during), _squeezed(end)], axis=1)
        clipped: Array = np.clip(events, -_LIMIT, _LIMIT).astype(np.float32)
        return clipped

    def _remember(
        self, at: Array, times: Array, size: Array, during: Array, start: Array,
        ends: tuple[Array, Array], surprise: Array,
    ) -> None:  # fmt: skip
        known = self._statistics[at]
        count = known[:, _COUNT]
        place = (count % MEMORY).astype(int)
        self._times[at, place] = times
        self._states[at, place] = _warped(during)
        self._starts[at, place] = _warped(start)
        known[:, _BEFORE] = np.where(count > 0, known[:, _LAST], times)
        known[:, _LAST], known[:, _TAIL], known[:, _HEAD] = times, *ends
        for column, rate, value in (
            (_BASE, _BASE_RATE, times),
            (_FAST, _FAST_RATE, times),
            (_MIDDLE, _MIDDLE_RATE, times),
            (_SPREAD, _BASE_RATE, surprise),
            (_SIZE, _BASE_RATE, size),
            # We clip, because one stall in either half of a task is no drift.
            (_DRIFT, _BASE_RATE, np.clip(ends[0] - ends[1], -0.2, 0.2)),
        ):
            known[:, column] += np.maximum(rate, 1 / (count + 1)) * (value - known[:, column])
        step = np.maximum(_BASE_RATE, 1 / (count + 1))[:, None]
        known[:, _MEANS] += step * (during - known[:, _MEANS])
        known[:, _PREVIOUS] = during
        known[:, _COUNT] += 1
        self._statistics[at] = known  # `known` is a copy, because numpy copies what a list selects
        self._center = None  # recomputed when next needed, once for a whole round

    def _log_samples(self, known: Array, tasks: Array) -> Array:
        """Return the log of the tasks' sizes; the worker's usual size if a size is missing."""
        samples = tasks[:, f.SAMPLES]
        logs = np.log(np.where(samples > 0, samples, 1.0))
        return np.where(np.isfinite(samples), logs, known[:, _SIZE])

    def _bases(self, known: Array, tasks: Array, size: Array) -> tuple[Array, float]:
        """Return each row's base, and the cluster's base, which a new worker also gets."""
        if self._center is None:
            seen = self._statistics[1 : len(self)]
            seen = seen[seen[:, _COUNT] > 0]
            self._center = float(np.median(seen[:, _BASE])) if len(seen) else None
            if len(seen):
                self._center_last = float(np.median(seen[:, _LAST] - seen[:, _BASE]))
        if self._center is not None:
            return np.where(known[:, _COUNT] > 0, known[:, _BASE], self._center), self._center
        # No task has ended yet, so we can only use the pace of the task's own report.
        share = tasks[:, f.SHARE]
        reported = np.log(np.where(share > 0, tasks[:, f.SECONDS] / share, 1.0)) - size
        return np.where(share > 0, reported, f.START_LOG_SECONDS), f.START_LOG_SECONDS

    def _alike(
        self, states: Array, at: Array, known: Array, base: Array, state: Array
    ) -> tuple[Array, ...]:
        """Return the worker's mean time in similar states, the same lately, and their log weight.

        The weight of a past task falls with the distance of its state (a Gaussian kernel).
        """
        count = known[:, [_COUNT]]
        order = np.arange(MEMORY)
        age = (count - 1 - order) % MEMORY
        apart = (states[at] - _warped(state)[:, None, :]) / _WIDTHS
        weight = np.exp(-np.einsum("bkf,bkf->bk", apart, apart)) * (order < count)
        offset = self._times[at] - base[:, None]
        recent = weight * np.exp(-age / _AGE)
        ever, lately = (
            (w * offset).sum(axis=1) / (w.sum(axis=1) + _PRIOR_WEIGHT) for w in (weight, recent)
        )
        return ever, lately, np.log1p(weight.sum(axis=1))

    def _range(self, at: Array, known: Array, base: Array) -> Array:
        """Return the 10, 50 and 90 % quantiles of the worker's times, relative to its base."""
        count = np.minimum(known[:, _COUNT], MEMORY).astype(int)
        times = np.where(np.arange(MEMORY) < count[:, None], self._times[at], np.inf)
        times.sort(axis=1)
        last = np.maximum(count - 1, 0)
        rows = np.arange(len(at))
        places = [last // 10, last // 2, last - last // 10]
        quantiles = np.stack([times[rows, place] for place in places], axis=1) - base[:, None]
        return np.where(count[:, None] > 0, quantiles, 0.0)


def _filled(state: Array, otherwise: Array) -> tuple[Array, Array]:
    missing = ~np.isfinite(state)
    return np.where(missing, otherwise, state), missing


def _squeezed(state: Array) -> Array:
    """Return a state with the load, which has no upper end, replaced by its logarithm."""
    out = state.copy()
    out[:, 1] = np.log1p(out[:, 1])
    return out


def _warped(state: Array) -> Array:
    """Return a state in which equal distances matter about equally, for the kernel."""
    out = _squeezed(state)
    # Memory matters when it runs out; 1.03 keeps the logarithm finite when all of it is used.
    out[:, 2] = -np.log(1.03 - np.minimum(out[:, 2], 1.0))
    return out


def _paces(tasks: Array, base: Array, size: Array) -> tuple[Array, ...]:
    """Return (pace, recent pace, share done, has a report, has two), paces relative to the base.

    Paces are log seconds per sample; the recent pace is the one between the last two reports.
    """
    share, seconds = tasks[:, f.SHARE], tasks[:, f.SECONDS]
    reported = np.isfinite(share)
    twice = np.isfinite(tasks[:, f.SHARE_BEFORE])
    share = np.where(reported, share, 0.0)
    safe = np.where(reported, seconds, 1.0) / np.where(reported, share, 1.0)
    pace = np.where(reported, np.log(safe) - size - base, 0.0)
    between = (seconds - tasks[:, f.SECONDS_BEFORE]) / (share - tasks[:, f.SHARE_BEFORE])
    recent = np.log(np.where(twice, between, 1.0)) - size - base
    return pace, np.where(twice, recent, pace), share, reported, twice


def _halves(tasks: Array, seconds: Array, size: Array, times: Array) -> tuple[Array, Array]:
    """Return the log seconds per sample of a finished task before and after its latest report."""
    share, elapsed = tasks[:, f.SHARE], tasks[:, f.SECONDS]
    known = np.isfinite(share) & (elapsed < seconds)
    head = np.where(known, elapsed / np.where(known, share, 0.5), 1.0)
    tail = np.where(known, (seconds - elapsed) / np.where(known, 1 - share, 0.5), 1.0)
    return (
        np.where(known, np.log(head) - size, times),
        np.where(known, np.log(tail) - size, times),
    )
