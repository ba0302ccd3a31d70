"""Which predictor a worker's forecasts come from, how sure they are, and what kinds of tasks cost.

Models compare a worker's task with its earlier ones, by the time per sample. If the precision or
the kind of device changes, all of these times are off by the same factor. So we learn the factor,
and multiply the sizes of the tasks of that kind by it. Then the whole past stays useful, for every
model. No trained weight depends on the names of precisions and devices.

A worker's own factors come first. If it has none for a kind, we use those of the other workers that
know both kinds. Tasks of an unknown kind keep their sizes.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan, log
from statistics import median

import numpy as np

from downpour.base.values import Forecast
from downpour.predictor import features as f
from downpour.predictor.features import KIND, MEMORY, SAMPLES, WORKERS_MAX, Array, Model

_BASE_RATE = 0.15  # as in `Histories`, so that lasting changes of a machine move the base
# A larger jump has another cause: another network, say.
_EFFECT_MOST = log(8.0)
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
            past.effects[kind] = min(max(own, -_EFFECT_MOST), _EFFECT_MOST)
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


STAGES = 3
_LATE = 0.375  # halfway between the traces' reports at 25 and 50 %
# If a worker leaves in the middle of a task, its forecasts stay here without an outcome.
_PENDING_MAX = 20_000
_LEVELS = np.array(f.LEVELS)
# Steps, in log seconds per outcome, chosen on half of the traces' jobs
# (docs/concepts/forecasts.md). `_OWN_STEP` is the largest step whose pinball loss on those jobs
# does not exceed that of shared offsets alone.
_FIRST_STEP, _SHRINK = 0.02, 0.6
# Steps shrink as if this many outcomes had come already. In a job's first round the quantiles are
# wide, and longer steps would make the quantiles of the next tasks too narrow.
_HEAD_START = 100
_OWN_STEP = 0.002
# Few outcomes fall beyond the outer quantiles, so those offsets take longer steps.
_REACH = np.array([2.0, 1.0, 2.0, 5.0])


def stages(tasks: Array) -> Array:
    """Return 0 for tasks at assignment, 1 and 2 for early and late reports of progress."""
    share = tasks[:, f.SHARE]  # NaN is above nothing
    return (share > 0).astype(int) + (share > _LATE)


def _pushes(surprises: Array, offsets: Array) -> Array:
    """Return plus the level for an outcome above, and minus one minus the level for one below."""
    pushes: Array = (surprises > offsets) - (1 - _LEVELS)
    return pushes


class Tracker:
    """Offsets that follow the outcomes, for the quantiles of logarithms, by stage."""

    def __init__(self, start: Sequence[Sequence[float]], rate: float) -> None:
        """Begin with the offsets `start` (stages, 4); `rate` is how far one outcome moves them."""
        self._offsets = np.array(start, dtype=float)
        self._rate = rate

    def offsets(self, stage: Array) -> Array:
        """Return the offsets (rows, 4) for predictions at these stages."""
        return self._offsets[stage]

    def learn(self, stage: Array, surprises: Array) -> None:
        """Take in surprises (rows, 4): the outcomes minus the quantiles without offsets."""
        for place in np.unique(stage):
            pushes = _pushes(surprises[stage == place], self._offsets[place])
            self._offsets[place] += self._rate * pushes.sum(axis=0)


class PendingForecasts:
    """Forecasts of tasks whose outcome we don't know yet, by worker and stage."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, int], tuple[float, Array]] = {}

    def remember(self, workers: Sequence[str], tasks: Array, rows: Sequence[Array]) -> None:
        """Remember forecasts; each replaces the worker's earlier one of the same stage.

        If a worker's running task has reported, a forecast at assignment is about the worker's next
        task. We don't keep that one, because the next outcome belongs to the running task.
        """
        stage = stages(tasks).tolist()
        busy = {worker for worker, place in zip(workers, stage, strict=True) if place}
        sizes = np.log(tasks[:, f.SAMPLES]).tolist()
        for worker, place, size, row in zip(workers, stage, sizes, rows, strict=True):
            if place or worker not in busy:
                self._rows[worker, place] = (size, row)
        while len(self._rows) > _PENDING_MAX:
            del self._rows[next(iter(self._rows))]

    def take(
        self, workers: Sequence[str], tasks: Array, seconds: Array
    ) -> tuple[list[str], Array, Array]:
        """Return workers, stages and surprises of finished tasks, and forget their forecasts.

        A surprise is the log of the seconds minus the forecast. If the forecast was for a task of
        another size, we scale it to this task by the time per sample.
        """
        names, stage, outcomes, rows = [], [], [], []
        ends, sizes = np.log(seconds).tolist(), np.log(tasks[:, f.SAMPLES]).tolist()
        for worker, end, size in zip(workers, ends, sizes, strict=True):
            for place in range(STAGES):
                if (forecast := self._rows.pop((worker, place), None)) is not None:
                    names.append(worker)
                    stage.append(place)
                    grown = size - forecast[0]
                    outcomes.append(end if isnan(grown) else end - grown)
                    rows.append(forecast[1])
        predicted = np.array(rows)
        ahead = np.array(outcomes).reshape(-1, *[1] * (predicted.ndim - 1))
        return names, np.array(stage, dtype=int), ahead - predicted


class Corrections:
    """Offsets for a cluster, and each worker's own offsets on top of them.

    A new worker starts with the cluster's offsets. These settle, because their steps shrink with
    the number of outcomes t, as t^(-1/2 - ε) (Angelopoulos, Barber and Bates 2024), with ε = 0.1. A
    worker's own steps never shrink, so its offsets follow it when its pace changes.
    """

    def __init__(self, most: float) -> None:
        """Begin at 0; neither part may move farther than `most`, in log seconds."""
        self._most = most
        self._shared = np.zeros((STAGES, len(f.LEVELS)))
        self._counts = np.zeros(STAGES)
        self._own: dict[str, Array] = {}  # (stages, 4) each, in the order of their last outcomes

    def of(self, workers: Sequence[str], stage: Array) -> Array:
        """Return the offsets (rows, 4) for predictions of these workers at these stages."""
        return self._shared[stage] + self._own_of(workers, stage)

    def learn(self, workers: Sequence[str], stage: Array, surprises: Array) -> None:
        """Take in surprises (rows, 4): the outcomes minus the quantiles without offsets."""
        own = self._own_of(workers, stage)
        moves = _OWN_STEP * _REACH * _pushes(surprises, self._shared[stage] + own)
        moved = np.clip(own + moves, -self._most, self._most)
        for worker, place, row in zip(workers, stage.tolist(), moved, strict=True):
            offsets = self._own.pop(worker, None)
            self._own[worker] = np.zeros_like(self._shared) if offsets is None else offsets
            self._own[worker][place] = row
        while len(self._own) > f.WORKERS_MAX:
            del self._own[next(iter(self._own))]
        for place in np.unique(stage):
            pushes = _pushes(surprises[stage == place], self._shared[place])
            self._counts[place] += len(pushes)
            step = _FIRST_STEP * (_HEAD_START + self._counts[place]) ** -_SHRINK * _REACH
            shared = self._shared[place] + step * pushes.sum(axis=0)
            self._shared[place] = np.clip(shared, -self._most, self._most)

    def _own_of(self, workers: Sequence[str], stage: Array) -> Array:
        offsets = np.zeros((len(workers), len(f.LEVELS)))
        for row, (worker, place) in enumerate(zip(workers, stage.tolist(), strict=True)):
            if worker in self._own:
                offsets[row] = self._own[worker][place]
        return offsets


_MOST = 0.3  # how far a quantile may move, in log seconds


class Recalibrated:
    """A model with recalibrated quantiles.

    docs/concepts/forecasts.md compares this with other methods, on machines that the model was not
    trained on.

    Every outcome moves the offset of each level a little. It moves up by the level if the outcome
    was above the quantile, and down by one minus the level if it was below. An offset comes to rest
    when exactly that share of outcomes stays below. Adaptive conformal inference (Gibbs and Candès
    2021) moves a quantile's level in this way. We move the quantile itself (Angelopoulos, Candès
    and Tibshirani 2023, section 2.1). The method assumes nothing about the outcomes: they need
    neither repeat nor be independent.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._corrections = Corrections(_MOST)
        self._pending = PendingForecasts()

    def predict(self, workers: Sequence[str], tasks: Array) -> Array:
        """Return the model's quantiles plus offsets; keep the forecasts until their outcomes."""
        quantiles = self._model.predict(workers, tasks)
        stage = stages(tasks)
        # We remember the model's own quantiles, because the offsets are relative to these.
        self._pending.remember(workers, tasks, list(quantiles))
        offsets = np.clip(self._corrections.of(workers, stage), -_MOST, _MOST)
        # Offsets of neighboring levels move independently, so moved quantiles could cross.
        return above_elapsed(np.maximum.accumulate(quantiles + offsets, axis=1), tasks)

    def learn(self, workers: Sequence[str], tasks: Array, seconds: Array) -> None:
        """Move the offsets by these tasks' outcomes, and let the model learn from them."""
        names, stage, surprises = self._pending.take(workers, tasks, seconds)
        if names:
            self._corrections.learn(names, stage, surprises)
        self._model.learn(workers, tasks, seconds)


def above_elapsed(quantiles: Array, tasks: Array) -> Array:
    """Raise quantiles to the time of the latest report: no task ends before its report."""
    _, elapsed = f.progress_of(tasks)
    least = np.where(elapsed > 0, np.log(np.maximum(elapsed, 1e-300)), -np.inf)
    return np.maximum(quantiles, least[:, None])


_WAITING_MAX = 64  # outcomes must not pile up if no prediction comes for long


class Online:
    """A `Predictor` that asks a model.

    Outcomes wait until the next prediction, so that a model learns from a whole round at once,
    which costs less than learning one by one. Waiting changes no prediction.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._kinds = KindEffects()
        self._waiting: dict[str, tuple[f.Features, float]] = {}

    def predict(self, worker: str, features: f.Features) -> Forecast:
        """Predict one task."""
        return self.predict_many([(worker, features)])[0]

    def predict_many(self, requests: Sequence[f.Request]) -> list[Forecast]:
        """Predict many tasks at once; the answers come in the order of the requests."""
        if not requests:
            return []
        self._take_in()
        workers = [worker for worker, _ in requests]
        tasks = self._kinds.scaled(workers, f.task_rows([features for _, features in requests]))
        quantiles = self._model.predict(workers, tasks)
        # A float64 overflows beyond exp(709).
        return [Forecast.of(row) for row in np.exp(np.minimum(quantiles, 300.0)).tolist()]

    def observe(self, worker: str, features: f.Features, seconds: float) -> None:
        """Learn how long a task took; ignore anything but a positive number of seconds."""
        if not f.LEAST <= seconds <= f.MOST:
            return
        # A model takes one task per worker at a time, because each task moves its worker's state.
        if worker in self._waiting or len(self._waiting) >= _WAITING_MAX:
            self._take_in()
        self._waiting[worker] = (dict(features), seconds)  # a copy: the caller may change its own

    def _take_in(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            features, seconds = zip(*waiting.values(), strict=True)
            workers, took = list(waiting), np.array(seconds)
            tasks = self._kinds.learn(workers, f.task_rows(features), took)
            self._model.learn(workers, tasks, took)


_log = logging.getLogger(__name__)

_MEMORY = 0.995  # an outcome's weight when the next one comes: about the last 200 count
# At the beginning, the first member's loss is multiplied by this. The first few outcomes are too
# noisy to choose by, and that member is the best on the traces (docs/concepts/forecasts.md). After
# `_FAVOR_OUTCOMES`, half of that advantage is left.
_FAVOR = 0.8
_FAVOR_OUTCOMES = 30.0
# Another member takes over if its loss is below this share of the chosen one's. Without such a gap,
# two equally good members would take turns, and with them the quantiles that policies act on.
_CLEARLY = 0.97


class Selector:
    """A model that passes on the answers of its best member.

    Every member predicts every task, and the selector judges it by the pinball loss
    (docs/concepts/forecasts.md); recent outcomes weigh most. If a member raises, or its quantiles
    are NaN, infinite or cross, the selector sets it aside with one logged warning.
    """

    def __init__(self, members: Mapping[str, Model]) -> None:
        """Choose among `members`, favoring the first at the beginning."""
        self._names, self._members = list(members), list(members.values())
        self._chosen = [0] * STAGES
        self._usable = list(range(len(members)))
        self._weights = np.zeros((STAGES, len(members)))
        self._losses = np.zeros((STAGES, len(members)))
        self._pending = PendingForecasts()

    def chosen(self, stage: int = 0) -> str:
        """Return the name of the member that answers at a stage."""
        return self._names[self._chosen[stage]]

    def predict(self, workers: Sequence[str], tasks: Array) -> Array:
        """Return the quantiles of the chosen member, row by row."""
        # NaN marks a member that did not answer: its loss will be NaN too, and `_judge` drops it.
        answers = np.full((len(self._names), len(workers), len(f.LEVELS)), np.nan)
        for place in self._usable:
            try:
                answers[place] = _sound(self._members[place].predict(workers, tasks))
            except Exception as error:  # noqa: BLE001 - the others go on
                self._put_aside(place, error)
        stage = stages(tasks)
        self._pending.remember(workers, tasks, list(answers.swapaxes(0, 1)))
        chosen: Array = answers[np.array(self._chosen)[stage], np.arange(len(workers))]
        return chosen

    def learn(self, workers: Sequence[str], tasks: Array, seconds: Array) -> None:
        """Judge the predictions of these tasks, let all members learn, and choose again."""
        judged, at, errors = self._pending.take(workers, tasks, seconds)
        if judged:
            loss = np.maximum(_LEVELS * errors, (_LEVELS - 1) * errors).mean(axis=2)
            for stage in set(at.tolist()):
                self._judge(stage, loss[at == stage])
        for place in self._usable:
            try:
                self._members[place].learn(workers, tasks, seconds)
            except Exception as error:  # noqa: BLE001
                self._put_aside(place, error)
        self._choose()

    def _judge(self, stage: int, loss: Array) -> None:
        """Take in the losses (outcomes, members) at one stage.

        A member whose loss is not finite failed on one of these tasks. We then drop all losses that
        it has gathered at this stage.
        """
        sound = np.isfinite(loss).all(axis=0)
        fade = _MEMORY ** len(loss)
        self._weights[stage] = np.where(sound, self._weights[stage] * fade + len(loss), 0)
        self._losses[stage] = np.where(sound, self._losses[stage] * fade + loss.sum(axis=0), 0)

    def _choose(self) -> None:
        for stage in range(STAGES):
            weight = self._weights[stage]
            if weight.max() == 0:
                self._chosen[stage] = self._usable[0]
                continue
            mean = self._losses[stage] / np.maximum(weight, 1e-9)
            favor = np.ones(len(mean))
            favor[0] -= (1 - _FAVOR) * _FAVOR_OUTCOMES / (_FAVOR_OUTCOMES + weight[0])
            judged = {p: mean[p] * favor[p] for p in self._usable if weight[p] > 0}
            best = min(judged, key=lambda p: judged[p])
            now = self._chosen[stage]
            if now not in judged or judged[best] < _CLEARLY * judged[now]:
                self._chosen[stage] = best

    def _put_aside(self, place: int, error: Exception) -> None:
        if self._usable == [place]:
            raise error
        self._usable = [p for p in self._usable if p != place]  # the loop goes on over the old list
        self._chosen = [self._usable[0] if c == place else c for c in self._chosen]
        _log.warning("setting aside predictor %s: %s", self._names[place], error)


def _sound(quantiles: Array) -> Array:
    if not np.isfinite(quantiles).all():
        raise ValueError("its quantiles are not finite")
    if (np.diff(quantiles, axis=1) < 0).any():
        raise ValueError("its quantiles cross")
    return quantiles
