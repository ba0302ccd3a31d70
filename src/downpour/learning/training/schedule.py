"""The learning rate as a function of the training's progress, so that no scheduler has state.

A training of E epochs with S steps each has T = E S steps, of which the first W = `warmup` T warm
up. Step k, counted from 0 over all epochs, multiplies the learning rate by `min(1, (k + 1) / W)`.
After the warm-up it also multiplies it by the schedule's factor at `p = (k - W) / (T - W)`. How
often the shards meet in an epoch changes none of it.

With `scale_rate`, the learning rate of n shards is n times as high (the linear scaling rule), and
the warm-up rises to it from the rate of one: by `1 + (n - 1) k / W`. Both are of Goyal et al. 2017,
"Accurate, Large Minibatch SGD", sections 2.1 and 2.2. So is the warm-up of a spec that names none,
five of ninety epochs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from downpour.core.spec import Spec
from downpour.learning.tasks.loaded import LoadedTask
from downpour.learning.tasks.own import shown, theirs

_USUAL_WARMUP = 5 / 90


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A step of a training: `step` of `steps` in an epoch, `epoch` of `epochs`, all from 0 on."""

    epoch: int
    epochs: int
    step: int
    steps: int

    @property
    def done(self) -> float:
        """The share of all steps before this one, in 0..1."""
        return (self.epoch + self.step / self.steps) / self.epochs


def rate_factor(loaded: LoadedTask, position: Position) -> float:
    """Return what the learning rate is multiplied by at a step: by the task, or by its spec.

    Raises:
        SpecError: what the task's own `rate` returns is no rate.
    """
    spec = loaded.spec
    with theirs(spec, "rate() fails"):
        own = loaded.task.rate(position.done)
    if own is None:
        return _by_spec(spec, position)
    if not isinstance(own, int | float) or not 0 <= own < math.inf:
        accepted = f"rate({position.done:g}) must return a number, 0 or above, not {shown(own)}"
        raise loaded.mistake("rate", accepted)
    return float(own) * _scale(spec)


def _scale(spec: Spec) -> int:
    return spec.shards or 1 if spec.scale_rate else 1


def _by_spec(spec: Spec, position: Position) -> float:
    total = position.epochs * position.steps
    share_of_warmup = spec.warmup or (_USUAL_WARMUP if spec.scale_rate else 0.0)
    warmup, scale = share_of_warmup * total, _scale(spec)
    number = position.epoch * position.steps + position.step
    if number >= warmup:
        return scale * _by_schedule(spec, position, (number - warmup) / (total - warmup))
    if spec.scale_rate:
        return 1 + (scale - 1) * number / warmup
    return min(1.0, (number + 1) / warmup)


def _by_schedule(spec: Spec, position: Position, share: float) -> float:
    """Return the factor at a share, in 0..1, of the steps after the warm-up."""
    match spec.schedule:
        case "cosine":
            return spec.final_rate + (1 - spec.final_rate) * (1 + math.cos(math.pi * share)) / 2
        case "linear":
            return 1 - (1 - spec.final_rate) * share
        case "step":
            return float(spec.decay ** (position.epoch // spec.decay_every))
        case "constant":
            return 1.0
