"""The hybrid of data and model parallelism: parts of the batch, then slices of dense layers.

The idea is from Krizhevsky 2014, "One weird trick for parallelizing convolutional neural networks",
section 4. Convolutions are data-parallel, because they have most of the work. Dense layers are
model-parallel, because they have most of the parameters. Here a batch's parts pass the layers
before the first dense one, each alone. Their results are put together. Then each dense layer
computes its outputs for all examples, one slice after the other: one slice for each process. Then
each part has its loss.

One process that computes everything takes the same operations in the same order as several do, so
the bytes are the same. They are others than without slices.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial, reduce
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from downpour.learning import numerics
from downpour.learning.intra_worker.helper_process import (
    Answer,
    HelperJob,
    HelperTask,
    JobPart,
    SharedNetwork,
    patience_seconds,
)
from downpour.learning.intra_worker.team import Arrangement, TeamStep, blocks
from downpour.learning.numerics import ALONE
from downpour.learning.tasks.loaded import LoadedTask
from downpour.learning.training.step import BatchPart, TrainingStep, add_gradient
from downpour_lab.inside.cut import (
    Entrance,
    EntranceDone,
    check_same_bytes,
    first_dense,
    layers_of,
    probed,
    refused,
)
from downpour_lab.inside.links import Link, LinkEnd, generators_state, go_on, linked


class Share:
    """One process's share of a step, and how it gets the others' results; this one has all."""

    def own(self, count: int) -> Sequence[int]:
        """Return this process's parts or slices, of `count` in all."""
        return range(count)

    def gather(self, own: Mapping[int, Tensor], count: int) -> list[Tensor]:
        """Give this process's tensors by number; return all `count` tensors in their order."""
        return [own[number] for number in range(count)]

    def gradient(self, parameter: nn.Parameter) -> Tensor:
        """Return where the slices of a dense parameter's gradient are put together."""
        if parameter.grad is None:
            parameter.grad = torch.empty_like(parameter)
        return parameter.grad

    def dense_done(self) -> None:
        """Take note that all parameters from the first dense layer on have their gradients."""

    def part_done(self, number: int) -> None:
        """Take note that a part's gradient was added to those of the parameters before."""


class HybridStep:
    """Computes the gradient of a step, or a process's share of it (`gradient_of`)."""

    def __init__(self, loaded: LoadedTask, network: nn.Module) -> None:
        self._loaded = loaded
        network.train()
        with ALONE:
            layers = layers_of(network)
        first = first_dense(loaded, layers)
        self._before, self._from = layers[:first], layers[first:]
        self._trained = any(v.requires_grad for one in self._before for v in one.parameters)

    def gradient(self, step: TrainingStep) -> list[Tensor]:
        """Compute all parts and slices in one process."""
        return self.gradient_of(step.parts, step.seed, Share())

    def gradient_of(
        self, parts: Sequence[BatchPart], seed: Callable[[int], None], share: Share
    ) -> list[Tensor]:
        """Add the gradients of all parts to the parameters' own; `seed` sets a part's generators.

        Returns:
            Each part's share of the batch's mean loss.
        """
        own, count = share.own(len(parts)), len(parts)
        features, drawn = {}, {}
        for number in own:
            features[number] = self._features(parts[number], seed)
            drawn[number] = generators_state(beyond_torch=self._loaded.spec.trains_own_code)
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

    def _features(self, part: BatchPart, seed: Callable[[int], None]) -> Tensor:
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

    `drawn` is where the generators were when it left the layers before the dense ones.
    """

    def __init__(self, output: Tensor, drawn: list[Any]) -> None:
        super().__init__()
        self._output = output
        self._drawn = drawn

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs, which the loss may change in place."""
        del x
        go_on(self._drawn)
        return self._output.clone()


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceTask:
    """Which process of a hybrid a helper is, and its link to the worker, which has number 0."""

    number: int
    processes: int
    dense: int  # the place of the gradients of dense layers in the shared memory
    link: LinkEnd


class SlicesDivided:
    """The worker's side; the spec says how many slices there are, which `processes` share.

    Each process sends its results to the worker, and the worker hands them to all others: slices of
    a dense layer's outputs, and gradients of its inputs. Those are small. The dense layers'
    gradients are large, so each process writes its own rows of them where the worker's optimizer
    reads them.
    """

    def __init__(self, loaded: LoadedTask, network: nn.Module, processes: int) -> None:
        spec = loaded.spec
        self._step = HybridStep(loaded, network)
        self._links = [linked() for _ in range(processes - 1)]
        self._ends = [Link(mine) for mine, _ in self._links]
        # One for each part that a helper computes, and one for all dense layers.
        self.gradients = spec.parts - len(blocks(spec.parts, processes)[0]) + 1

    def tasks(self, work: HelperTask) -> list[HelperTask]:
        """Return each helper's task: which slices it has, and its link to the worker."""
        processes, dense = len(self._links) + 1, self.gradients - 1
        slices = [
            SliceTask(number=number, processes=processes, dense=dense, link=its)
            for number, (_, its) in enumerate(self._links, start=1)
        ]
        return [
            replace(work, share=asdict(one), descriptors=[*one.link.descriptors]) for one in slices
        ]

    def gradient(self, together: TeamStep) -> list[Tensor] | None:
        """Compute the worker's share of a step, and collect the others'."""
        began, step = time.monotonic(), together.step
        parts = step.parts
        job = together.job_of([JobPart.made_of(part) for part in parts])
        for helper in together.helpers:
            helper.give(job)
        share = _Worker(self._ends, together.network, self.gradients - 1)
        losses = self._step.gradient_of(parts, step.seed, share)
        wait_seconds = patience_seconds(time.monotonic() - began)
        for helper in together.helpers:
            if not helper.answer(job, wait_seconds).done:
                return None
        own = len(share.own(len(parts)))
        for place in range(len(parts) - own):
            together.network.add(place)
        return losses

    def close(self) -> None:
        """Close the links to the helpers."""
        for end in self._ends:
            end.close()


class SliceWork:
    """A helper's side; `share` is its `SliceTask`, and its gradients belong in `shared`."""

    def __init__(
        self,
        loaded: LoadedTask,
        network: nn.Module,
        shared: SharedNetwork,
        share: Mapping[str, Any],
    ) -> None:
        self.network = network
        self.shared = shared
        self.task = msgspec.convert(share, SliceTask)
        self._step = HybridStep(loaded, network)
        self._link = Link(self.task.link)

    def do(self, job: HelperJob, randomness: numerics.Randomness) -> Answer:
        """Compute this process's share of a step."""
        parts = [part.part for part in job.parts]
        share = _Helping(self, self._link, len(parts))
        self._step.gradient_of(parts, partial(randomness.begin, job.step), share)
        return Answer(job=job.number)

    def forget(self) -> None:
        """Close the link to the worker, which would wait for the failed job."""
        self.network.zero_grad()
        self._link.close()


class _Worker(Share):
    """The worker's share of a step: the first parts and slices, and what all others need.

    `dense` is the place of the gradients of dense layers in `shared`.
    """

    def __init__(self, ends: Sequence[Link], shared: SharedNetwork, dense: int) -> None:
        self._ends = ends
        self._shared = shared
        self._dense = dense
        self._began = time.monotonic()
        self._sent = 0

    def own(self, count: int) -> list[int]:
        """The first ones."""
        return blocks(count, len(self._ends) + 1)[0]

    def gather(self, own: Mapping[int, Tensor], count: int) -> list[Tensor]:
        """Collect what the helpers have, and send each what it lacks."""
        found = dict(own)
        others = blocks(count, len(self._ends) + 1)[1:]
        wait_seconds = patience_seconds(time.monotonic() - self._began)
        for end, theirs in zip(self._ends, others, strict=True):
            found |= {number: end.receive(wait_seconds).tensor for number in theirs}
        for end, theirs in zip(self._ends, others, strict=True):
            for number in sorted(found.keys() - set(theirs)):
                self._sent += 1
                end.send(self._sent, found[number])
        return [found[number] for number in range(count)]

    def gradient(self, parameter: nn.Parameter) -> Tensor:
        """The memory that all write their rows into."""
        if parameter.grad is None:
            parameter.grad = self._shared.gradient(self._dense, parameter)
        return parameter.grad


class _Helping(Share):
    """A helper's share of a step; `work` says who it is, and where gradients lie."""

    def __init__(self, work: SliceWork, link: Link, parts: int) -> None:
        self._work = work
        self._link = link
        self._first = len(blocks(parts, work.task.processes)[0])
        self._sent = 0

    def own(self, count: int) -> list[int]:
        """Those of its number."""
        return blocks(count, self._work.task.processes)[self._work.task.number]

    def gather(self, own: Mapping[int, Tensor], count: int) -> list[Tensor]:
        """Send its own to the worker, which sends the others."""
        for number in sorted(own):
            self._sent += 1
            self._link.send(self._sent, own[number])
        return [
            own[number] if number in own else self._link.receive().tensor for number in range(count)
        ]

    def gradient(self, parameter: nn.Parameter) -> Tensor:
        """The memory that all write their rows into."""
        return self._work.shared.gradient(self._work.task.dense, parameter)

    def dense_done(self) -> None:
        """Forget what all processes have computed alike: the worker's counts."""
        self._work.network.zero_grad()

    def part_done(self, number: int) -> None:
        """Leave the part's gradient in its place."""
        self._work.shared.put(number - self._first)


def _check(loaded: LoadedTask, part: BatchPart) -> None:
    """Refuse a network without dense layers in a row, or that gives other bytes in layers."""
    network = loaded.network()
    numerics.place(network, loaded.spec, images=loaded.images)
    probe = probed(loaded, network, part)
    if first_dense(loaded, probe.layers) not in probe.points:
        raise refused(loaded, "has paths around its first dense layer")
    check_same_bytes(loaded, network, part)


HYBRID = Arrangement(
    divided=SlicesDivided, helping=SliceWork, check=_check, alone=HybridStep, needs_whole_batch=True
)
"""Each process has some parts up to the first dense layer, and slices of dense layers."""
