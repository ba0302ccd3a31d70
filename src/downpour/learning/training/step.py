"""One training step: the batch's loss, its gradient, and the optimizers' step.

A batch may be cut into parts. The gradient of each is computed alone and added to those before it,
in order. So it is the same to the bit whether this process computes all of it or others help.
"""

import gc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from downpour.base.errors import listed
from downpour.base.names import CPU
from downpour.core.families import ARRANGEMENTS
from downpour.core.spec import Spec, batches_in
from downpour.host.machine import free_memory, told_limit
from downpour.learning import numerics
from downpour.learning.accelerators import is_plain, release
from downpour.learning.tasks import Batch
from downpour.learning.tasks.batches import Indices
from downpour.learning.tasks.loaded import LoadedTask
from downpour.learning.tasks.own import shown
from downpour.learning.training.epoch_order import samples_in
from downpour.learning.training.loaders import Loaders
from downpour.learning.training.optimizers import Optimizers


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPart:
    """A part of a batch: its number, the indices of its examples [b], and its share of all."""

    number: int
    indices: Indices
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStep:
    """The step of a training that is to come: what its gradient follows from.

    Its batch is the training examples of `indices` [b], which `loaders` may have read ahead. The
    generators of `randomness` are active.
    """

    loaded: LoadedTask
    model: nn.Module
    indices: Indices
    number: int
    randomness: numerics.Randomness
    loaders: Loaders | None = None
    scaled: Callable[[Tensor], Tensor] = lambda loss: loss
    """Scales a loss before it goes backward, so that no gradient of float16 vanishes."""

    @property
    def parts(self) -> list[BatchPart]:
        """The parts of the batch."""
        return batch_parts(self.indices, self.loaded.spec.parts)

    def seed(self, part: int = 0) -> None:
        """Seed the generators for a part of the batch, by its number."""
        self.randomness.begin(self.number, part)

    def add(self, part: BatchPart, model: nn.Module | None = None) -> Tensor:
        """Add a part's gradient, see `add_gradient`; `model` may stand in for the network."""
        # If no other process can compute a part, all draw in a row, as in any loop of a user's.
        if self.loaded.spec.inside.processes > 1:
            self.seed(part.number)
        model = self.model if model is None else model
        return add_gradient(self.loaded, model, part, self.loaders, self.scaled)


class StepHelp(Protocol):
    """A way to compute a step's gradient other than part after part, such as with helpers."""

    def gradient(self, step: TrainingStep) -> list[Tensor] | None:
        """Add the gradients of all parts, in order, to the parameters' own; return their losses.

        None if the caller must compute the whole step; there may be some gradients by then.
        """


def cutting(spec: Spec) -> Any:
    """Return the arrangement of a spec if it cuts the network; None if it divides only batches."""
    how = spec.inside.how
    return None if how in {"data", "auto"} else ARRANGEMENTS[ARRANGEMENTS.check(how)]


def train_step(step: TrainingStep, optimizers: Optimizers, *ways: StepHelp | None) -> Tensor:
    """Take a step; returns its loss.

    That is the mean over examples, or the sum and the count [2] if the task counts something else.
    The step's generators are seeded. The gradient is computed by the first of `ways` that can do
    it, and otherwise part after part.
    """
    loaded, model = step.loaded, step.model
    if loaded.has_own_step:
        with numerics.precision(loaded.spec):
            batch = _read(loaded, step.indices, step.loaders)
            loss = loaded.task.step(model, optimizers.by_name, batch)
        return _checked(loss, loaded, "step", trained=False).detach()
    optimizers.zero_grad()
    losses = None
    for way in filter(None, ways):
        if (losses := way.gradient(step)) is not None:
            break
        optimizers.zero_grad()
    if losses is None:
        losses = [step.add(part) for part in step.parts]
    loss = settled(losses, model)
    optimizers.unscale()
    if loaded.spec.clip_norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), loaded.spec.clip_norm)
    optimizers.step()
    return loss


def settled(losses: Sequence[Tensor], model: nn.Module) -> Tensor:
    """Return a batch's loss from those of its parts; the gradients become those of its mean."""
    if not losses[0].dim():
        return losses[0] if len(losses) == 1 else torch.stack(list(losses)).sum()
    whole = torch.stack(list(losses)).sum(0)
    if len(losses) > 1:
        for value in model.parameters():
            if value.grad is not None:
                value.grad.div_(whole[1])
    return whole


def batch_parts(indices: Indices, count: int) -> list[BatchPart]:
    """Cut a batch into nearly equal parts, the longer ones first; no part is empty."""
    size = len(indices)
    cut = [indices] if count == 1 else np.array_split(indices, min(count, size))
    return [
        BatchPart(number=number, indices=part, share=len(part) / size)
        for number, part in enumerate(cut)
    ]


def add_gradient(
    loaded: LoadedTask,
    model: nn.Module,
    part: BatchPart,
    loaders: Loaders | None = None,
    scaled: Callable[[Tensor], Tensor] = lambda loss: loss,
) -> Tensor:
    """Add a part's gradient to the model's, and return its loss.

    That is the part's share of the batch's mean loss. If the task returns a sum and a count, it is
    these [2]. Then the gradient is that of the sum, unless the part is the whole batch.
    """
    with numerics.precision(loaded.spec):
        loss = loaded.task.loss(model, _read(loaded, part.indices, loaders))
    if isinstance(loss, tuple):
        total, count = _checked_pair(loss, loaded)
        scaled(total / count if part.share == 1 else total).backward()  # type: ignore[no-untyped-call]
        return torch.stack([total.detach().to(count.dtype), count])
    loss = _checked(loss, loaded, "loss", trained=True)
    # The mean of a batch is the mean of its parts, each counted by its examples.
    scaled(loss if part.share == 1 else loss * part.share).backward()  # type: ignore[no-untyped-call]
    return loss.detach() * part.share


def _read(loaded: LoadedTask, indices: Indices, loaders: Loaders | None) -> Batch:
    return loaded.batch("train", indices) if loaders is None else loaders.read(indices)


def _checked_pair(pair: tuple[object, ...], loaded: LoadedTask) -> tuple[Tensor, Tensor]:
    """Return a sum that can be trained on, and what it counts, in the widest type."""
    spec = loaded.spec
    with suppress(TypeError, ValueError, RuntimeError):
        total, number = pair
        wide = numerics.sum_type(spec.device)
        count = torch.as_tensor(number, dtype=wide, device=spec.device).detach()
        if not count.dim():
            return _checked(total, loaded, "loss", trained=True), count
    accepted = (
        "loss() must return a scalar, the mean of its batch, or a pair of a sum and a count, but "
        f"returned {shown(pair)}"
    )
    raise loaded.mistake("loss", accepted)


def _checked(loss: object, loaded: LoadedTask, method: str, *, trained: bool) -> Tensor:
    if not isinstance(loss, Tensor):
        accepted = f"{method}() must return a tensor, but returned {type(loss).__name__}"
    elif loss.dim() or not loss.is_floating_point():
        accepted = (
            f"{method}() must return a scalar, the mean of its batch, but returned "
            f"{loss.dtype} {list(loss.shape)}"
        )
    elif trained and loss.grad_fn is None:  # also one that a task told to require a gradient
        accepted = f"{method}() does not depend on any trained parameter"
    else:
        return loss
    raise loaded.mistake(method, accepted)


@dataclass(slots=True)
class Shortage:
    """How often an accelerator had too little memory for a step of an experiment; what follows.

    The first time, this process gives back all device memory that it does not use, and trains again
    (docs/internals/decisions.md, "A step that runs out of memory"). From the second time on, it
    also keeps in the host's memory what its steps need later.
    """

    device: str
    count: int = 0

    @property
    def spills(self) -> bool:
        """Whether steps keep in the host's memory what they need later."""
        return self.count > 1

    def may_try_again(self) -> bool:
        """Note a shortage; returns whether there is something left to try."""
        if self.device == CPU or self.spills:
            return False
        self.count += 1
        return True

    def make_room(self) -> None:
        """Give back unused memory, once nothing refers to the failed step."""
        gc.collect()  # an error and the frames that it names may refer to each other
        release(self.device)


def advice(loaded: LoadedTask) -> str:
    """Say how much memory there was, what did not fit, and what would."""
    spec = loaded.spec
    batch, parts = spec.batch_size, min(spec.parts, spec.batch_size)
    arrangement = cutting(spec)
    if loaded.has_own_step or (arrangement is not None and arrangement.needs_whole_batch):
        fits = f"a step holds all {batch} examples at once: use a smaller batch_size"
    elif parts == batch:
        where = "a machine" if spec.device == CPU else "a device"
        fits = f"even one example at a time is too much: use {where} with more memory"
    else:
        fits = (
            f"{-(-batch // parts)} examples at a time are too many: try accumulate = "
            f"{min(2 * parts, batch)} for smaller parts"
        )
    if spec.device != CPU:  # torch has said how much memory the accelerator has
        return fits
    return f"{told_limit()}; {fits}"


_LEFT_BYTES = 1 << 30
"""The memory that stays free on the host: with less the kernel might kill this process."""

Kept = tuple[Tensor, torch.device]


def kept_on_host(model: nn.Module) -> AbstractContextManager[object]:
    """Return a context for training steps of a network that keep nothing on its device for later.

    Parts of larger tensors, sparse tensors and tensors with gaps stay there, because they could not
    come back exactly as they were. So do parameters and buffers, which are there anyway, and
    tensors that the host has no room for.

    Autograd keeps tensors of the forward pass, and they take most memory of a step. We move them to
    the host's memory, and bring them back one at a time. Each comes back with the numbers and the
    strides that it had, so the backward pass takes the same kernels to the same bytes. Only copies
    take time.
    """
    kept_there = (*model.parameters(), *model.buffers())
    own = {one.data_ptr() for one in kept_there if is_plain(one)}

    def away(value: Tensor) -> Kept:
        there = value.device
        if there.type == "cpu" or not is_plain(value):
            return value, there
        if value.storage_offset() or value.data_ptr() in own:
            return value, there
        if value.nbytes + _LEFT_BYTES > free_memory():
            return value, there
        copy = value.to("cpu")
        return (copy if copy.stride() == value.stride() else value), there

    def back(kept: Kept) -> Tensor:
        value, there = kept
        return value.to(there)

    return torch.autograd.graph.saved_tensors_hooks(away, back)


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


def last_batch(shard: Indices, spec: Spec) -> Indices:
    """Return as many of a shard's examples as its last batch has."""
    count = len(shard)
    batches = min(batches_in(count, spec.batch_size, spec.last_batch), spec.local_steps or count)
    return shard[: samples_in(batches, count, spec) - samples_in(batches - 1, count, spec)]


def in_words(odd: Sequence[str]) -> str:
    """Name what differs: the loss before parameters, these before the optimizer's state."""
    if "progress/loss_sum" in odd:
        return "its loss differs"
    named = [name.removeprefix("model/") for name in odd if name.startswith("model/")] or list(odd)
    return f"{listed(named, 2)} differ{'' if len(named) > 1 else 's'}"
