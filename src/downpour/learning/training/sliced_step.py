"""A step whose dense layers are cut by columns: each slice sees the whole batch.

The idea is from Krizhevsky 2014, "One weird trick for parallelizing convolutional neural networks",
section 4. Convolutions are data-parallel, because they have most of the work. Dense layers are
model-parallel, because they have most of the parameters. Here a batch's parts pass the layers
before the first dense one, each alone. Their results are put together. Then each dense layer
computes its outputs for all examples, one slice after the other: one slice for each process. Then
each part has its loss.

One process that computes everything takes the same operations in the same order as several do, so
the bytes are the same. They are others than without slices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from downpour.base.errors import SpecError
from downpour.learning.models import generators
from downpour.learning.tasks.loaded import LoadedTask
from downpour.learning.training.layers import Entrance, EntranceDone, Layer, layers_of
from downpour.learning.training.step import BatchPart, add_gradient

Seed = Callable[[int], None]
"""Sets the generators for a part of a batch, by its number."""


class Share(Protocol):
    """One process's share of a step, and how it gets the results of the others."""

    def own(self, count: int) -> Sequence[int]:
        """Return which of so many parts or slices are this process's."""

    def gather(self, own: Mapping[int, Tensor], count: int) -> list[Tensor]:
        """Return all of so many tensors in their order, for its own ones."""

    def gradient(self, parameter: nn.Parameter) -> Tensor:
        """Return where the slices of a dense parameter's gradient are put together."""

    def dense_done(self) -> None:
        """Take note that all parameters from the first dense layer on have their gradients."""

    def part_done(self, number: int) -> None:
        """Take note that a part's gradient was added to those of the parameters before."""


class Everything:
    """The share of a process that computes everything."""

    def own(self, count: int) -> Sequence[int]:
        """All of them."""
        return range(count)

    def gather(self, own: Mapping[int, Tensor], count: int) -> list[Tensor]:
        """Nothing is missing."""
        return [own[number] for number in range(count)]

    def gradient(self, parameter: nn.Parameter) -> Tensor:
        """The parameter's own."""
        if parameter.grad is None:
            parameter.grad = torch.empty_like(parameter)
        return parameter.grad

    def dense_done(self) -> None:
        """Nothing to do."""

    def part_done(self, number: int) -> None:
        """Nothing to do."""


class HybridStep:
    """Computes the gradient of a step, or a process's share of it.

    Args:
        loaded: the task.
        network: the network to train.
    """

    def __init__(self, loaded: LoadedTask, network: nn.Module) -> None:
        self._loaded = loaded
        network.train()
        with generators.ALONE:
            layers = layers_of(network)
        first = first_dense(loaded, layers)
        self._before, self._from = layers[:first], layers[first:]
        self._trained = any(v.requires_grad for one in self._before for v in one.parameters)

    def gradient(self, parts: Sequence[BatchPart], seed: Seed, share: Share) -> list[Tensor]:
        """Add the gradients of all parts to the parameters' own.

        Returns:
            Each part's share of the batch's mean loss.
        """
        own, count = share.own(len(parts)), len(parts)
        features, drawn = {}, {}
        for number in own:
            features[number] = self._features(parts[number], seed)
            drawn[number] = generators.state(beyond_torch=self._loaded.spec.trains_own_code)
        everyone = share.gather({n: value.detach() for n, value in features.items()}, count)
        rows = np.cumsum([0, *map(len, everyone)])
        whole = torch.cat(everyone).requires_grad_(self._trained)
        seed(self._loaded.spec.parts)  # as no part is: these layers draw for the whole batch
        output = self._dense(whole, share)
        losses, back = {}, {}
        for number in own:
            seed(parts[number].number)
            shown = output.detach()[rows[number] : rows[number + 1]].requires_grad_()
            stand_in = _Shown(shown, drawn[number])
            losses[number] = add_gradient(self._loaded, stand_in, parts[number])
            back[number] = torch.zeros_like(shown) if shown.grad is None else shown.grad
        torch.autograd.backward(output, torch.cat(share.gather(back, count)))
        share.dense_done()
        for number in own:
            if whole.grad is not None:
                gradient = whole.grad[rows[number] : rows[number + 1]]
                torch.autograd.backward(features[number], gradient)
            share.part_done(number)
        return share.gather(losses, count)

    def _features(self, part: BatchPart, seed: Seed) -> Tensor:
        """Return what a part is before the first dense layer."""
        seed(part.number)
        entrance = Entrance(self._before)
        with suppress(EntranceDone):
            add_gradient(self._loaded, entrance, part)
        return entrance.output

    def _dense(self, x: Tensor, share: Share) -> Tensor:
        for layer in self._from:
            if isinstance(layer.run, nn.Linear):
                slices = self._loaded.spec.inside.processes
                x = _Sliced.apply(x, layer.run.weight, layer.run.bias, layer.run, slices, share)
            else:
                x = layer.run(x)
        return x


def first_dense(loaded: LoadedTask, layers: Sequence[Layer]) -> int:
    """Return the number of the first dense layer."""
    spec = loaded.spec
    dense = [n for n, layer in enumerate(layers) if isinstance(layer.run, nn.Linear)]
    used = [id(value) for layer in layers for value in layer.parameters]
    if not dense or dense[0] == 0:
        accepted = (
            "has no nn.Linear after other layers, whose outputs several processes could share"
        )
    elif any(used.count(id(value)) > 1 for n in dense for value in layers[n].parameters):
        accepted = "uses a dense layer twice"
    else:
        return dense[0]
    raise SpecError("inside.how", spec.inside.how, f"{spec.trained_code[1]} {accepted}")


class _Sliced(torch.autograd.Function):
    """A dense layer, some outputs after the others.

    The parameters are arguments so that the outputs require a gradient if one of them does.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        dense: nn.Linear,
        slices: int,
        share: Share,
    ) -> Tensor:
        rows = _rows(dense.out_features, slices)
        ctx.save_for_backward(x)
        ctx.dense, ctx.share, ctx.rows = dense, share, rows
        own = {
            number: functional.linear(
                x, weight[rows[number]], None if bias is None else bias[rows[number]]
            )
            for number in share.own(slices)
        }
        return torch.cat(share.gather(own, slices), -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (x,), dense, share = ctx.saved_tensors, ctx.dense, ctx.share
        own: dict[int, Tensor] = {}
        inputs = x.reshape(-1, dense.in_features)
        for number in share.own(len(ctx.rows)):
            rows = ctx.rows[number]
            gradient = gradients[0][..., rows].contiguous()
            outputs = gradient.reshape(len(inputs), -1)
            if dense.weight.requires_grad:
                torch.mm(outputs.t(), inputs, out=share.gradient(dense.weight)[rows])
            if dense.bias is not None and dense.bias.requires_grad:
                torch.sum(outputs, 0, out=share.gradient(dense.bias)[rows])
            if ctx.needs_input_grad[0]:
                own[number] = gradient @ dense.weight[rows]
        summed = None
        if ctx.needs_input_grad[0]:
            summed = reduce(torch.add, share.gather(own, len(ctx.rows)))
        return summed, None, None, None, None, None


def _rows(outputs: int, slices: int) -> list[slice]:
    """Return the outputs of each slice; the last may be empty if a layer has few."""
    blocks = np.array_split(np.arange(outputs), slices)
    ends = np.cumsum([0, *map(len, blocks)]).tolist()
    return [slice(begin, end) for begin, end in pairwise(ends)]


class _Shown(nn.Module):
    """Stands for the network in the task's loss, with a part's outputs.

    Args:
        output: the outputs of the part's examples.
        drawn: where the generators were when it left the layers before the dense ones.
    """

    def __init__(self, output: Tensor, drawn: list[Any]) -> None:
        super().__init__()
        self._output = output
        self._drawn = drawn

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs, which the loss may change in place."""
        del x
        generators.go_on(self._drawn)
        return self._output.clone()
