"""The cost of a sample in one precision, on one kind of device, relative to another.

Models compare a worker's task with its earlier ones, by the time per sample. If the precision
changes, all of these times are off by the same factor. So we learn the factor, and multiply the
sizes of the tasks of that kind by it. Then the whole past stays useful, for every model. No trained
weight depends on the names of precisions and devices.

A worker's own factors come first. If it has none for a kind, we use those of the other workers that
know both kinds. Tasks of an unknown kind keep their sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log
from statistics import median

import numpy as np

from downpour.predictor.features import KIND, MEMORY, SAMPLES, WORKERS_MAX, Array

_BASE_RATE = 0.15  # as in `Histories`, so that lasting changes of a machine move the base
# A larger jump has another cause: another network, say.
_MOST = log(8.0)
# A worker's own factor counts as its number of tasks, and the median of all as that many for each
# other worker that knows both kinds. One task alone may have met a stall.
_TASKS_A_WORKER = 10


@dataclass(slots=True)
class _Past:
    """A worker's running log seconds per sample, its kinds' effects on them, and tasks of each."""

    first: int
    last: int
    base: float
    effects: dict[int, float]
    counts: dict[int, int] = field(default_factory=dict)
    tasks: int = 0


class KindEffects:
    """The factors of all workers; a kind is a number, and 0 an unknown one (`features.KIND`)."""

    def __init__(self) -> None:
        self._pasts: dict[str, _Past] = {}
        self._between: dict[tuple[int, int], tuple[float, int]] = {}

    def scaled(self, workers: Sequence[str], tasks: Array) -> Array:
        """Return the rows of tasks, with sizes in samples of a common kind."""
        kinds = tasks[:, KIND].astype(int).tolist()
        if not any(kinds):
            return tasks
        effects = [self._effect(worker, kind) for worker, kind in zip(workers, kinds, strict=True)]
        rows = tasks.copy()
        rows[:, SAMPLES] *= np.exp(effects)
        return rows

    def learn(self, workers: Sequence[str], tasks: Array, seconds: Array) -> Array:
        """Take in finished tasks of different workers, and return them as `scaled` does."""
        times = np.log(seconds) - np.log(tasks[:, SAMPLES])
        for row in np.flatnonzero(np.isfinite(times)).tolist():
            self._learn(workers[row], int(tasks[row, KIND]), float(times[row]))
        self._between.clear()
        return self.scaled(workers, tasks)

    def _learn(self, worker: str, kind: int, time: float) -> None:
        effect = self._effect(worker, kind)
        past = self._pasts.pop(worker, None) or _Past(kind, kind, time - effect, {kind: effect})
        # Last, so that the dictionary is in the order of last tasks.
        self._pasts[worker] = past
        if len(self._pasts) > WORKERS_MAX:
            del self._pasts[next(iter(self._pasts))]
        if kind not in {0, past.first}:
            count, own = past.counts.get(kind, 0), past.effects.get(kind, 0.0)
            own += (time - past.base - own) / (min(count, MEMORY) + 1)
            past.effects[kind] = min(max(own, -_MOST), _MOST)
            past.counts[kind] = count + 1
            effect = self._effect(worker, kind)
        past.tasks += 1
        past.base += max(_BASE_RATE, 1 / past.tasks) * (time - effect - past.base)
        past.last = kind or past.last

    def _effect(self, worker: str, kind: int) -> float:
        """Return the log of the factor of a worker's sizes in a kind."""
        past = self._pasts.get(worker)
        if past is None:
            return self._of_stranger(kind)
        if kind in {0, past.first}:
            return past.effects[kind] if kind else 0.0
        of_all, workers = self._apart(past.first, kind)
        of_all += past.effects[past.first]
        if kind not in past.effects:
            return of_all if workers else self._effect(worker, past.last)
        count, others = past.counts[kind], _TASKS_A_WORKER * max(0, workers - 1)
        return (count * past.effects[kind] + others * of_all) / (count + others)

    def _apart(self, kind: int, other: int) -> tuple[float, int]:
        """Return how much more a sample of another kind costs the workers that know both."""
        if (kind, other) not in self._between:
            known = [past.effects for past in self._pasts.values()]
            apart = [each[other] - each[kind] for each in known if {kind, other} <= each.keys()]
            self._between[kind, other] = median(apart) if apart else 0.0, len(apart)
        return self._between[kind, other]

    def _of_stranger(self, kind: int) -> float:
        """Return how far the workers that know a kind are from all, who stand for a stranger."""
        if (0, kind) not in self._between:
            pasts = self._pasts.values()
            alike = [past.base + past.effects[kind] for past in pasts if kind in past.effects]
            usual = median(past.base for past in pasts) if alike and kind else 0.0
            apart = median(alike) - usual if alike and kind else 0.0
            self._between[0, kind] = apart, len(alike)
        return self._between[0, kind][0]
