"""The interface of a predictor, and the features that it may use.

A caller uses a `Predictor`, which takes names and features by name and returns seconds. Members of
the family are `Model`s, which answer the same questions in batches of rows (`features.task_rows`)
and logarithms of seconds; `calibration.Online` makes a predictor from a model. A worker is a name,
and an unknown name is a new worker. All seconds count from the assignment of a task to its result.

Names are the traces' column names: `n_samples`, `batches`, and the machine's state at assignment
(`cpu_util`, `loadavg1`, `mem_used`, `iowait`). A progress report at NN % of the batches (1 to 99)
adds `pNN_elapsed_s` and the state at that moment as `pNN_cpu_util` and so on. If a task has several
reports, the latest counts, and the one before it gives the pace between the two. We ignore other
names. A value that is absent, NaN or impossible (a negative time) becomes NaN.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

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
ELAPSED = "elapsed_s"

# The columns of a task's row.
SAMPLES = 0
ASSIGNED = slice(1, 5)
SHARE, SECONDS, NOW = 5, 6, slice(7, 11)
SHARE_BEFORE, SECONDS_BEFORE = 11, 12
DURING = slice(13, 17)
WIDTH = 17

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
        plan = _plan(names)
        known = ([tasks[number][name] for name in plan.names] for number in numbers)
        values = np.array([[*row, math.nan] for row in known], dtype=float)
        values = np.where((values >= 0) & (values <= MOST), values, math.nan)
        rows[numbers] = _read(plan, values)
    return rows


@dataclass(frozen=True, slots=True)
class _Plan:
    """Where to read each feature in a list of values, whose last element is NaN.

    An absent feature points to that NaN, so no case needs a separate branch.
    """

    names: tuple[str, ...]
    samples: int
    batches: int
    assigned: tuple[int, ...]
    reports: tuple[tuple[int, tuple[int, ...]], ...]  # (percent, places of elapsed and state)


@functools.lru_cache(maxsize=1024)
def _plan(given: tuple[str, ...]) -> _Plan:
    matches = [_PROGRESS.fullmatch(name) for name in given]
    percents = sorted({int(match[1]) for match in matches if match and match[2] in _FIELDS})
    wanted = ["n_samples", "batches", *STATE]
    wanted += [f"p{percent}_{field}" for percent in percents for field in _FIELDS]
    names = tuple(name for name in wanted if name in given)
    place = {name: number for number, name in enumerate(names)}

    def at(name: str) -> int:
        return place.get(name, len(names))

    return _Plan(
        names=names,
        samples=at("n_samples"),
        batches=at("batches"),
        assigned=tuple(at(name) for name in STATE),
        reports=tuple((p, tuple(at(f"p{p}_{field}") for field in _FIELDS)) for p in percents),
    )


def _read(plan: _Plan, values: Array) -> Array:
    """Return the rows of tasks that have the same names."""
    rows = np.full((len(values), WIDTH), math.nan)
    samples, batches = values[:, plan.samples], values[:, plan.batches] * _BATCH_SAMPLES
    size = np.where(samples >= LEAST, samples, batches)
    rows[:, SAMPLES] = np.where(size >= LEAST, size, math.nan)
    rows[:, ASSIGNED] = values[:, plan.assigned]
    states = [rows[:, ASSIGNED]]
    for percent, places in plan.reports:
        report = values[:, places]
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
