"""The selector: it answers with the model that has lately been best on this run.

Every member predicts every task. When the outcome is known, each is judged by the pinball loss of
its prediction, recent outcomes weighing most, separately at assignment and after reports of
progress. The first member is favored at the beginning, and the chosen one is replaced only by one
that is clearly better. If a worker's name does not mean a machine (functions rented by the call),
history predicts nothing, and the cluster's median wins.

A member that raises, or whose quantiles are NaN, infinite or cross, is set aside with one logged
warning, and the others go on.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np

from downpour.predictor.base import LEVELS, Array, Model
from downpour.predictor.calibration import STAGES, PendingForecasts, stages

_log = logging.getLogger(__name__)

_MEMORY = 0.995  # an outcome's weight after one more: about the last 200 outcomes count
# At the beginning the first member's loss counts this much of itself. The first few outcomes are
# too noisy to choose by, and that member is the best on the traces (docs/concepts/forecasts.md).
# After `_FAVOR_OUTCOMES` half of that advantage is left.
_FAVOR = 0.8
_FAVOR_OUTCOMES = 30.0
# Another member takes over below this share of the chosen one's loss. Without such a gap, two that
# are equally good would take turns, and with them the quantiles that policies act on.
_CLEARLY = 0.97
_LEVELS = np.array(LEVELS)


class Selector:
    """A model that answers with the answer of its best member."""

    def __init__(self, members: Mapping[str, Model]) -> None:
        """Choose among `members`: the first is favored at the beginning."""
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

        A member with a loss that is not finite failed for one of these tasks: all that it has
        gathered at this stage is dropped.
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
            Exception: what the member raised, if no other is left.
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
        ValueError: they are not finite, or cross.
    """
    if not np.isfinite(quantiles).all():
        raise ValueError("its quantiles are not finite")
    if (np.diff(quantiles, axis=1) < 0).any():
        raise ValueError("its quantiles cross")
    return quantiles
