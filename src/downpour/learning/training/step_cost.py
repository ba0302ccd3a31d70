"""The cost of a training step of a spec, as its trial measured it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from downpour.core.spec import Spec
from downpour.learning.training.epoch_order import batches_in, samples_in

Shard = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """The cost of one training step on this machine.

    `memory_bytes` are those of parameters, gradients, the optimizer's state and the tensors kept
    for going backward, without the temporary memory of single operations. `in_parts` says if a
    batch in parts takes another step than the whole one.
    """

    seconds: float
    memory_bytes: int
    in_parts: str = ""

    def __str__(self) -> str:
        return f"a step takes {self.seconds:.2g} s and {self.memory_bytes / 1e6:.3g} MB here"


def last_batch(shard: Shard, spec: Spec) -> Shard:
    """Return as many of a shard's examples as its last batch has."""
    count = len(shard)
    batches = min(batches_in(count, spec.batch_size), spec.local_steps or count)
    return shard[: samples_in(batches, count, spec) - samples_in(batches - 1, count, spec)]


def in_words(odd: Sequence[str]) -> str:
    """Name what differs: the loss before parameters, these before the optimizer's state."""
    if "progress/loss_sum" in odd:
        return "its loss differs"
    named = [name.removeprefix("model/") for name in odd if name.startswith("model/")] or list(odd)
    more = f" and {len(named) - 2} more" if len(named) > 2 else ""
    return f"{', '.join(named[:2])}{more} differ{'' if len(named) > 1 else 's'}"
