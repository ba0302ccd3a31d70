"""The interface of a predictor: a worker's history and its machine's state → quantiles in seconds.

A caller uses a `Predictor`, which takes names and features by name and returns seconds. Members of
the family are `Model`s, which answer the same questions in batches of rows (`features.task_rows`)
and logarithms of seconds; `online.Online` makes a predictor from a model. A worker is a name, and
an unknown name is a new worker. All seconds count from the assignment of a task to its result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        ...

    def predict_many(self, requests: Sequence[Request]) -> list[Forecast]:
        """Predict many tasks at once, which costs much less than predicting them one by one."""
        ...

    def observe(self, worker: str, features: Features, seconds: float) -> None:
        """Learn how long a task took; ignore anything but a positive number of seconds."""
        ...


class Model(Protocol):
    """A member of the family."""

    def predict(self, workers: Sequence[str], tasks: Array) -> Array:
        """Return the quantiles (rows, 4) of the log of the tasks' seconds, in rising order."""
        ...

    def learn(self, workers: Sequence[str], tasks: Array, seconds: Array) -> None:
        """Take in finished tasks of different workers."""
        ...
