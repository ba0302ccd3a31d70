"""The selector: of several models, the one that has lately been right on the run at hand.

Every member predicts every task, and what each would have answered is judged when the outcome is
known: by its pinball loss, recent outcomes counting most, separately at assignment and after
reports of progress. The first member is favored until the outcomes say otherwise, and who is in
keeps the place until another is clearly better. On workers whose names are not machines, history
predicts nothing, and the cluster's median wins.

A member that raises, or that answers what no quantiles can be (NaN, infinite, crossing), is
set aside with one logged warning, and the others go on.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np

from downpour.predictor.base import LEVELS, Array, Model
from downpour.predictor.calibration import STAGES, PendingForecasts, stages

_log = logging.getLogger(__name__)

_MEMORY = 0.995  # what an outcome still counts when one more has come
_FAVOR = 0.8  # of the others' loss, for the first member, at the beginning
_PATIENCE_OUTCOMES = 30.0  # what the beginning counts for
_CLEARLY = 0.97
_LEVELS = np.array(LEVELS)


class Selector:
    """A model that answers with the answer of its best member."""

    def __init__(self, members: Mapping[str, Model]) -> None:
        """Choose among `members`, the one to begin with first and the last resort last."""
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
        answers = np.full((len(self._names), len(workers), len(LEVELS)), np.nan)
        for place, member in enumerate(self._members.values()):
            if place in self._set_aside:
                continue
            try:
                answers[place] = _sound(member.predict(workers, tasks))
            except Exception as error:  # noqa: BLE001 - whatever is wrong with it, others go on
                self._put_aside(place, error)
        stage = stages(tasks)
        self._pending.remember(workers, stage, list(answers.swapaxes(0, 1)))
        chosen: Array = answers[np.array(self._chosen)[stage], np.arange(len(workers))]
        return chosen

    def learn(self, workers: Sequence[str], tasks: Array, seconds: Array) -> None:
        """Judge what was predicted, choose anew, and have all members learn."""
        due = list(self._pending.take(workers, np.log(seconds)))
        if due:
            at = np.array([stage for stage, _, _ in due])
            off = np.stack([outcome - predicted for _, predicted, outcome in due])
            loss = np.maximum(_LEVELS * off, (_LEVELS - 1) * off).mean(axis=2)
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
        """Take in the losses (outcomes, members) at one stage; what failed counts no more."""
        told = np.isfinite(loss).all(axis=0)
        fade = _MEMORY ** len(loss)
        self._weights[stage] = np.where(told, self._weights[stage] * fade + len(loss), 0)
        self._losses[stage] = np.where(told, self._losses[stage] * fade + loss.sum(axis=0), 0)

    def _choose(self) -> None:
        for stage in range(STAGES):
            weight = self._weights[stage]
            usable = [p for p in range(len(self._names)) if p not in self._set_aside]
            if weight.max() == 0:
                self._chosen[stage] = usable[0]
                continue
            mean = self._losses[stage] / np.maximum(weight, 1e-9)
            favor = np.ones(len(mean))
            favor[0] -= (1 - _FAVOR) * _PATIENCE_OUTCOMES / (_PATIENCE_OUTCOMES + weight[0])
            judged = {p: mean[p] * favor[p] for p in usable if weight[p] > 0}
            best = min(judged, key=lambda p: judged[p])
            now = self._chosen[stage]
            if now not in judged or judged[best] < _CLEARLY * judged[now]:
                self._chosen[stage] = best

    def _put_aside(self, place: int, error: Exception) -> None:
        """Let a member go; the last one's failure is everybody's.

        Raises:
            Exception: what the last member raised.
        """
        if len(self._set_aside) + 1 == len(self._names):
            raise error
        self._set_aside.add(place)
        usable = [p for p in range(len(self._names)) if p not in self._set_aside]
        self._chosen = [usable[0] if c == place else c for c in self._chosen]
        _log.warning("predictor %s is set aside: %s", self._names[place], error)


def _sound(found: Array) -> Array:
    """Return quantiles that are some.

    Raises:
        ValueError: they are not finite, or cross.
    """
    if not np.isfinite(found).all():
        raise ValueError("it answers what is no number")
    if (np.diff(found, axis=1) < 0).any():
        raise ValueError("its quantiles cross")
    return found
