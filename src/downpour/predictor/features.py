"""The interface of a predictor, its features, the past that it remembers, and statistics of it.

A caller uses a `Predictor`, which takes names and features by name and returns seconds. Members of
the family are `Model`s, which answer the same questions in batches of rows (`task_rows`) and
logarithms of seconds; `calibration.Online` makes a predictor from a model. A worker is a name, and
an unknown name is a new worker. All seconds count from the assignment of a task to its result.

Names are the traces' column names: `n_samples`, `batches`, and the machine's state at assignment
(`cpu_util`, `loadavg1`, `mem_used`, `iowait`). The precision and the kind of device are names with
the value 1, such as `precision_bfloat16` and `device_cuda`; without them, the kind is unknown. A
progress report at NN % of the batches (1 to 99) adds `pNN_elapsed_s` and the state at that moment
as `pNN_cpu_util` and so on. If a task has several reports, the latest counts, and the one before it
gives the pace between the two. We ignore other names. A value that is absent, NaN or impossible (a
negative time) becomes NaN.

Learned predictors make their inputs from every worker's past (`Histories`). There, all times are
logarithms of seconds per sample, relative to the worker's own running rate (its *base*). We handle
rows in batches, because a batch costs little more than a single row.
"""

import functools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from downpour.base.names import AUTO, DEVICE_KINDS
from downpour.base.values import Forecast

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Features: TypeAlias = Mapping[str, float]
Request: TypeAlias = tuple[str, Features]

LEVELS = (0.1, 0.5, 0.9, 0.98)
MEDIAN = 1  # the index of its level in `LEVELS`

# The seconds per sample of an ordinary machine, until we know anything better.
START_LOG_SECONDS = -5.7


class Predictor(Protocol):
    """Predicts how long tasks take, and learns from how long they really took.

    Not thread-safe: one thread owns a predictor. The same calls in the same order give the same
    answers.
    """

    def predict(self, worker: str, features: Features) -> Forecast:
        """Predict one task; a progress report among the features makes it sharper."""

    def predict_many(self, requests: Sequence[Request]) -> list[Forecast]:
        """Predict many tasks at once, which costs much less than predicting them one by one."""

    def observe(self, worker: str, features: Features, seconds: float) -> None:
        """Learn how long a task took; ignore anything but a positive number of seconds."""


class Model(Protocol):
    """A member of the family."""

    def predict(self, workers: Sequence[str], tasks: Array) -> Array:
        """Return the quantiles (rows, 4) of the log of the tasks' seconds, in rising order."""

    def learn(self, workers: Sequence[str], tasks: Array, seconds: Array) -> None:
        """Take in finished tasks of different workers."""


STATE = ("cpu_util", "loadavg1", "mem_used", "iowait")
KINDS = tuple(
    [f"precision_{name}" for name in ("float32", "bfloat16")]
    + [f"device_{name}" for name in DEVICE_KINDS if name != AUTO]
)
ELAPSED = "elapsed_s"

# The columns of a task's row.
SAMPLES = 0
ASSIGNED = slice(1, 5)
SHARE, SECONDS, NOW = 5, 6, slice(7, 11)
SHARE_BEFORE, SECONDS_BEFORE = 11, 12
DURING = slice(13, 17)
KIND = 17
"""A number for the precision and the kind of device together; 0 if neither is known."""
WIDTH = 18

# No real task, size or load is outside these limits. Logarithms of other values could overflow.
LEAST, MOST = 1e-9, 1e12

_BATCH_SAMPLES = 32  # in the traces: `batches` gives the size if `n_samples` is missing
_PROGRESS = re.compile(r"p([1-9][0-9]?)_(\w+)")
_FIELDS = (ELAPSED, *STATE)


def task_rows(tasks: Sequence[Features]) -> Array:
    """Return the rows (tasks, `WIDTH`) of tasks' features."""
    # We read tasks with the same names as one array. A round's tasks usually have the same names.
    alike: dict[tuple[str, ...], list[int]] = {}
    for number, features in enumerate(tasks):
        alike.setdefault(tuple(features), []).append(number)
    rows = np.full((len(tasks), WIDTH), math.nan)
    for names, numbers in alike.items():
        rows[numbers] = _read([tasks[number] for number in numbers], _percents(names))
    return rows


def progress_of(tasks: Array) -> tuple[Array, Array]:
    """Return the share done and the seconds until then (rows,); zeros before any report."""
    reported = tasks[:, SHARE] > 0
    return np.where(reported, tasks[:, SHARE], 0.0), np.where(reported, tasks[:, SECONDS], 0.0)


def log_seconds_at_pace(tasks: Array) -> Array:
    """Return the log of the seconds (rows,) that tasks take at their reports' pace; 0 without."""
    share = tasks[:, SHARE]
    reported = share > 0
    seconds: Array = np.where(reported, tasks[:, SECONDS], 1.0) / np.where(reported, share, 1.0)
    return np.log(seconds)


def log_samples(tasks: Array, usual: Array | float = 0.0) -> Array:
    """Return the log of the tasks' sizes (rows,); `usual`, a log too, where a size is missing."""
    samples = tasks[:, SAMPLES]
    known = np.isfinite(samples)
    return np.where(known, np.log(np.where(known, samples, 1.0)), usual)


def before_reports(tasks: Array) -> Array:
    """Return tasks' rows as they were at assignment, before any report."""
    unreported = tasks.copy()
    unreported[:, SHARE] = math.nan
    return unreported


@functools.lru_cache(maxsize=1024)
def _percents(names: tuple[str, ...]) -> list[int]:
    """Return the percents of the reports among features, in rising order."""
    matches = [_PROGRESS.fullmatch(name) for name in names]
    return sorted({int(match[1]) for match in matches if match and match[2] in _FIELDS})


def _read(tasks: Sequence[Features], percents: Sequence[int]) -> Array:
    """Return the rows of tasks that have the same names."""

    def values(*names: str) -> Array:
        given = np.array([[task.get(name, math.nan) for name in names] for task in tasks], float)
        return np.where((given >= 0) & (given <= MOST), given, math.nan)

    rows = np.full((len(tasks), WIDTH), math.nan)
    samples, batches = values("n_samples", "batches").T
    size = np.where(samples >= LEAST, samples, batches * _BATCH_SAMPLES)
    rows[:, SAMPLES] = np.where(size >= LEAST, size, math.nan)
    rows[:, ASSIGNED] = values(*STATE)
    rows[:, KIND] = (values(*KINDS) > 0) @ 2 ** np.arange(len(KINDS))
    states = [rows[:, ASSIGNED]]
    for percent in percents:
        report = values(*(f"p{percent}_{field}" for field in _FIELDS))
        states.append(report[:, 1:])
        # Time goes forward, so we drop a report with more progress and less time. The comparison is
        # negated because SECONDS is NaN until the first report, and comparisons with NaN are false.
        later = (report[:, 0] >= LEAST) & ~(report[:, 0] <= rows[:, SECONDS])
        rows[later, SHARE_BEFORE] = rows[later, SHARE]
        rows[later, SECONDS_BEFORE] = rows[later, SECONDS]
        rows[later, SHARE] = percent / 100
        rows[later, SECONDS] = report[later, 0]
        rows[later, NOW] = report[later, 1:]
    rows[:, DURING] = states[0] if len(states) == 1 else _mean(np.stack(states))
    return rows


def _mean(states: Array) -> Array:
    """Return the mean (rows, 4) of states (times, rows, 4), ignoring missing values."""
    known = np.isfinite(states)
    counts = known.sum(axis=0)
    sums = np.where(known, states, 0.0).sum(axis=0)
    return np.where(counts > 0, sums / np.maximum(counts, 1), math.nan)


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
    *(f"state_{name}" for name in STATE),
    *(f"missing_{name}" for name in STATE),
    *(f"usual_{name}" for name in STATE),
    *(f"previous_{name}" for name in STATE),
    "fullness", "fast", "middle", "last", "before_last", "tail", "head",
    "spread", "drift", "lowest", "median", "highest", "count", "unseen", "cluster", "cluster_last",
    "alike", "alike_lately", "alike_weight", "size",
    "alike_at_start", "share", "pace", "recent_pace", "lately_faster", "pace_alike", "alike_now",
    "without_report", "without_before",
    *(f"now_{name}" for name in STATE),
)  # fmt: skip
EVENTS = (
    "time", "time_cluster", "time_alike", "tail", "head", "size",
    *(f"during_{name}" for name in STATE),
    *(f"end_{name}" for name in STATE),
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
        size = log_samples(tasks, known[:, _SIZE])
        base, center = self._bases(known, tasks, size)
        seen = known[:, _COUNT] > 0
        state, missing = _filled(tasks[:, ASSIGNED], known[:, _MEANS])
        during, _ = _filled(tasks[:, DURING], known[:, _MEANS])
        now, _ = _filled(tasks[:, NOW], state)
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
        size = log_samples(tasks, known[:, _SIZE])
        times = np.log(seconds) - size
        # We compare the outcome with the expectation at assignment, before any report.
        base, center = self._bases(known, before_reports(tasks), size)
        if self._center is None:  # we can compare the first tasks only with each other
            center = float(np.median(times))
            base = np.full(len(at), center)
        during, _ = _filled(tasks[:, DURING], known[:, _MEANS])
        end, _ = _filled(tasks[:, NOW], during)
        start, _ = _filled(tasks[:, ASSIGNED], known[:, _MEANS])
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
        reported = log_seconds_at_pace(tasks) - size
        return np.where(tasks[:, SHARE] > 0, reported, START_LOG_SECONDS), START_LOG_SECONDS

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
    share, seconds = tasks[:, SHARE], tasks[:, SECONDS]
    reported = np.isfinite(share)
    twice = np.isfinite(tasks[:, SHARE_BEFORE])
    share = np.where(reported, share, 0.0)
    pace = np.where(reported, log_seconds_at_pace(tasks) - size - base, 0.0)
    between = (seconds - tasks[:, SECONDS_BEFORE]) / (share - tasks[:, SHARE_BEFORE])
    recent = np.log(np.where(twice, between, 1.0)) - size - base
    return pace, np.where(twice, recent, pace), share, reported, twice


def _halves(tasks: Array, seconds: Array, size: Array, times: Array) -> tuple[Array, Array]:
    """Return the log seconds per sample of a finished task before and after its latest report."""
    share, elapsed = tasks[:, SHARE], tasks[:, SECONDS]
    known = np.isfinite(share) & (elapsed < seconds)
    tail = np.where(known, (seconds - elapsed) / np.where(known, 1 - share, 0.5), 1.0)
    return (
        np.where(known, log_seconds_at_pace(tasks) - size, times),
        np.where(known, np.log(tail) - size, times),
    )
