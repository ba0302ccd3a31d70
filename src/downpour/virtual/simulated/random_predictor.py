"""A predictor of random numbers: forecasts may only change how long a run takes."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from downpour.base.values import Forecast
from downpour.predictor.base import Features, Request

_SPREAD = 1.0
_TYPICAL_SECONDS = 2.0
_QUANTILES = (0.6, 1.0, 1.5, 2.0)


class Guessing:
    """Predicts anything and learns nothing, drawing numbers from `random`."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def predict(self, worker: str, features: Features) -> Forecast:  # noqa: ARG002
        """Guess how long a task takes, without looking at it."""
        middle = _TYPICAL_SECONDS * self._random.lognormvariate(0.0, _SPREAD)
        return Forecast.of(middle * share for share in _QUANTILES)

    def predict_many(self, requests: Sequence[Request]) -> list[Forecast]:
        """Guess for each task."""
        return [self.predict(*request) for request in requests]

    def observe(self, worker: str, features: Features, seconds: float) -> None:
        """Learn nothing."""
