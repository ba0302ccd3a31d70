"""The selector: answers with the model that has lately been best on this run.

Every member predicts every task. When the selector knows the outcome, it judges each member by the
pinball loss of its prediction, separately at assignment and after reports of progress. Recent
outcomes weigh most. The selector favors the first member at the beginning, and replaces the chosen
one only with one that is clearly better. If a worker's name does not stand for a machine (functions
rented by the call), history predicts nothing, and the cluster's median wins.

If a member raises, or its quantiles are NaN, infinite or cross, the selector sets it aside with one
logged warning and continues with the others.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np

from downpour.predictor.base import LEVELS, Array, Model
from downpour.predictor.calibration import STAGES, PendingForecasts, stages

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
_LEVELS = np.array(LEVELS)


class Selector:
    """A model that passes on the answers of its best member."""

    def __init__(self, members: Mapping[str, Model]) -> None:
        """Choose among `members`, favoring the first at the beginning."""
        self._members = dict(members)
        self._names = list(members)
        self._chosen = [0] * STAGES
        self._set_aside: set[int] = set()
        self._weights = np.zeros((STAGES, len(members)))
        self._losses = np.zeros((STAGES, len(members)))
        self._pending = PendingForecasts()

    def chosen(self, stage: int = 0) -> str:
        """Return the name of the member that answers at a stage."""
        return self._names[self._chosen[stage]]

    def predict(self, workers: Sequence[str], tasks: Array) -> Array:
        """Return the quantiles of the chosen member, row by row."""
        # NaN marks a member that did not answer: its loss will be NaN too, and `_judge` drops it.
        answers = np.full((len(self._names), len(workers), len(LEVELS)), np.nan)
        for place, member in enumerate(self._members.values()):
            if place in self._set_aside:
                continue
            try:
                answers[place] = _sound(member.predict(workers, tasks))
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
        for place, member in enumerate(self._members.values()):
            if place in self._set_aside:
                continue
            try:
                member.learn(workers, tasks, seconds)
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
            usable = [p for p in range(len(self._names)) if p not in self._set_aside]
            if weight.max() == 0:
                self._chosen[stage] = usable[0]
                continue
            mean = self._losses[stage] / np.maximum(weight, 1e-9)
            favor = np.ones(len(mean))
            favor[0] -= (1 - _FAVOR) * _FAVOR_OUTCOMES / (_FAVOR_OUTCOMES + weight[0])
            judged = {p: mean[p] * favor[p] for p in usable if weight[p] > 0}
            best = min(judged, key=lambda p: judged[p])
            now = self._chosen[stage]
            if now not in judged or judged[best] < _CLEARLY * judged[now]:
                self._chosen[stage] = best

    def _put_aside(self, place: int, error: Exception) -> None:
        """Set a member aside.

        Raises:
            Exception: the error that the member raised, if no other member is left.
        """
        if len(self._set_aside) + 1 == len(self._names):
            raise error
        self._set_aside.add(place)
        usable = [p for p in range(len(self._names)) if p not in self._set_aside]
        self._chosen = [usable[0] if c == place else c for c in self._chosen]
        _log.warning("setting aside predictor %s: %s", self._names[place], error)


def _sound(quantiles: Array) -> Array:
    """Return the quantiles of a member.

    Raises:
        ValueError: the quantiles are not finite, or cross.
    """
    if not np.isfinite(quantiles).all():
        raise ValueError("its quantiles are not finite")
    if (np.diff(quantiles, axis=1) < 0).any():
        raise ValueError("its quantiles cross")
    return quantiles
