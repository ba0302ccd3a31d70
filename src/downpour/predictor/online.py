"""Makes a predictor from a model: takes names and features, returns seconds, singly or in bulk."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from downpour.base.values import Forecast
from downpour.predictor.base import Features, Model, Request
from downpour.predictor.features import LEAST, MOST, task_rows

_WAITING_MAX = 64  # outcomes must not pile up if no prediction comes for long


class Online:
    """A `Predictor` that asks a model.

    Outcomes wait until the next prediction, so that a model learns from a whole round at once,
    which costs less than learning one by one. Waiting changes no prediction.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._waiting: dict[str, tuple[Features, float]] = {}

    def predict(self, worker: str, features: Features) -> Forecast:
        """Predict one task."""
        return self.predict_many([(worker, features)])[0]

    def predict_many(self, requests: Sequence[Request]) -> list[Forecast]:
        """Predict many tasks at once; the answers come in the order of the requests."""
        if not requests:
            return []
        self._take_in()
        tasks = task_rows([features for _, features in requests])
        quantiles = self._model.predict([worker for worker, _ in requests], tasks)
        # A float64 overflows beyond exp(709).
        return [Forecast.of(row) for row in np.exp(np.minimum(quantiles, 300.0)).tolist()]

    def observe(self, worker: str, features: Features, seconds: float) -> None:
        """Learn how long a task took; ignore anything but a positive number of seconds."""
        if not LEAST <= seconds <= MOST:
            return
        # A model takes one task per worker at a time, because each task moves its worker's state.
        if worker in self._waiting or len(self._waiting) >= _WAITING_MAX:
            self._take_in()
        self._waiting[worker] = (dict(features), seconds)  # a copy: the caller may change its own

    def _take_in(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            features, seconds = zip(*waiting.values(), strict=True)
            self._model.learn(list(waiting), task_rows(features), np.array(seconds))
