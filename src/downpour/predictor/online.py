"""A predictor made of a model: names and features in, seconds out, one at a time or many."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from downpour.predictor.base import Features, Model, Quantiles, Request
from downpour.predictor.features import LEAST, MOST, task_rows

_WAITING_MAX = 64


class Online:
    """Serves a model to whoever has tasks to predict (`Predictor`).

    What is observed waits until the next prediction, so that a model learns from whole rounds at
    once; that changes what it costs, not what comes out.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._waiting: dict[str, tuple[Features, float]] = {}

    def predict(self, worker: str, features: Features) -> Quantiles:
        """Predict one task."""
        return self.predict_many([(worker, features)])[0]

    def predict_many(self, requests: Sequence[Request]) -> list[Quantiles]:
        """Predict many tasks at once; the answers come in the order of the requests."""
        if not requests:
            return []
        self._take_in()
        tasks = task_rows([features for _, features in requests])
        found = self._model.predict([worker for worker, _ in requests], tasks)
        return [Quantiles(*row) for row in np.exp(np.minimum(found, 300.0)).tolist()]

    def observe(self, worker: str, features: Features, seconds: float) -> None:
        """Learn how long a task took; anything but a positive number of seconds is ignored."""
        if not LEAST <= seconds <= MOST:
            return
        if worker in self._waiting or len(self._waiting) >= _WAITING_MAX:
            self._take_in()
        self._waiting[worker] = (dict(features), seconds)

    def _take_in(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            told, seconds = zip(*waiting.values(), strict=True)
            self._model.learn(list(waiting), task_rows(told), np.array(seconds))
