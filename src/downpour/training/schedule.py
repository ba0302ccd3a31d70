"""The learning rate as a function of the position in the training, so that no scheduler has state.

A training of E rounds with S steps each has T = E S steps, of which the first W = `warmup` T warm
up. Step k, counted from 0 over all rounds, multiplies the learning rate by min(1, (k + 1) / W), and
after the warm-up by what the schedule says of p = (k - W) / (T - W).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from downpour.errors import SpecError
from downpour.spec import Spec
from downpour.tasks.loaded import LoadedTask
from downpour.tasks.own import theirs


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A step of a training: `step` of `steps` in a round, `round` of `rounds`, all from 0 on."""

    round: int
    rounds: int
    step: int
    steps: int

    @property
    def done(self) -> float:
        """The share of all steps before this one, in 0..1."""
        return (self.round + self.step / self.steps) / self.rounds


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
        accepted = f"rate({position.done:g}) must return a number from 0 on, and returned {own!r}"
        raise SpecError(*spec.trained_code, accepted)
    return float(own)


def _by_spec(spec: Spec, position: Position) -> float:
    total = position.rounds * position.steps
    warmup = spec.warmup * total
    number = position.round * position.steps + position.step
    if number < warmup:
        return min(1.0, (number + 1) / warmup)
    share = (number - warmup) / (total - warmup)
    match spec.schedule:
        case "cosine":
            return spec.final_rate + (1 - spec.final_rate) * (1 + math.cos(math.pi * share)) / 2
        case "linear":
            return 1 - (1 - spec.final_rate) * share
        case "step":
            return float(spec.decay ** (position.round // spec.decay_every))
        case "constant":
            return 1.0
