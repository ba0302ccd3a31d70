"""Arrangements that cut the network: a pipeline, and a pipeline beside data parallelism.

In a pipeline, a part of the batch arrives from the stage before as a tensor, with the state of its
random generators. It leaves for the next one in the same way, and its gradient comes back on the
same links. So wherever the network is cut, a stage computes exactly the same as its layers would in
the whole.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from downpour.learning.intra_worker.data import TeamStep, blocks
from downpour.learning.intra_worker.helper_process import (
    Answer,
    HelperJob,
    HelperTask,
    JobPart,
    SliceTask,
    StageTask,
    patience_seconds,
)
from downpour.learning.intra_worker.shared_network import Link, Parcel, SharedNetwork, linked
from downpour.learning.models import generators
from downpour.learning.tasks.loaded import LoadedTask
from downpour.learning.training import numerics
from downpour.learning.training.cut import probed, stages_of
from downpour.learning.training.layers import Entrance, EntranceDone, Layer, layers_of, run
from downpour.learning.training.sliced_step import HybridStep
from downpour.learning.training.step import BatchPart, add_gradient, batch_parts


class Hybrid:
    """The worker's side.

    The hybrid of data and model parallelism has parts of the batch, then slices of dense layers.
    Each process sends its results to the worker, and the worker hands them to all others: slices of
    a dense layer's outputs, and gradients of its inputs. Those are small. The dense layers'
    gradients are large, so each process writes its own rows of them where the worker's optimizer
    reads them.

    Args:
        loaded: the task; its spec says how many slices there are.
        network: the network, at its place in memory.
        processes: how many share parts and slices.
    """

    def __init__(self, loaded: LoadedTask, network: nn.Module, processes: int) -> None:
        spec = loaded.spec
        self._spec = spec
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
        return [replace(work, slices=one) for one in slices]

    def gradient(self, step: TeamStep) -> list[Tensor] | None:
        """Compute the worker's share of a step, and collect the others'."""
        began = time.monotonic()
        job = step.job_of([JobPart.made_of(part) for part in step.parts])
        for helper in step.helpers:
            helper.give(job)
        randomness = numerics.Randomness(
            job.task_seed, self._spec.device, beyond_torch=self._spec.trains_own_code
        )
        share = _Worker(self._ends, step.network, self.gradients - 1)
        losses = self._step.gradient(step.parts, partial(randomness.begin, job.step), share)
        wait_seconds = patience_seconds(time.monotonic() - began)
        for helper in step.helpers:
            if not helper.answer(job, wait_seconds).done:
                return None
        own = len(share.own(len(step.parts)))
        for place in range(len(step.parts) - own):
            step.network.add(place)
        return losses

    def close(self) -> None:
        """Close the links to the helpers."""
        for end in self._ends:
            end.close()


class SliceWork:
    """A helper's side.

    Args:
        loaded: the task.
        network: the network to train.
        shared: where gradients belong.
        task: which helper it is.
    """

    def __init__(
        self, loaded: LoadedTask, network: nn.Module, shared: SharedNetwork, task: SliceTask
    ) -> None:
        self.network = network
        self.shared = shared
        self.task = task
        self._step = HybridStep(loaded, network)
        self._link = Link(task.link)

    def do(self, job: HelperJob, randomness: numerics.Randomness) -> Answer:
        """Compute this process's share of a step."""
        parts = [given.part for given in job.parts]
        share = _Helping(self, self._link, len(parts))
        self._step.gradient(parts, partial(randomness.begin, job.step), share)
        return Answer(job=job.number)

    def forget(self) -> None:
        """Close the link to the worker, which would wait for the failed job."""
        self.network.zero_grad()
        self._link.close()


class _Worker:
    """The worker's share of a step: the first parts and slices, and what all others need.

    Args:
        ends: its links to the helpers, in their order.
        shared: where gradients lie.
        dense: the place of those of dense layers.
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

    def dense_done(self) -> None:
        """Nothing to do."""

    def part_done(self, number: int) -> None:
        """Nothing to do: the gradient is where the optimizer looks for it."""


class _Helping:
    """A helper's share of a step.

    Args:
        work: who it is, and where gradients lie.
        link: to the worker.
        parts: how many the batch has.
    """

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


class Turn(Enum):
    """The direction in which a part passes a stage."""

    FORWARD = "forward"
    BACKWARD = "backward"


def turns(ahead: int, parts: int) -> Iterator[tuple[Turn, int]]:
    """Return what a stage does, part after part: one forward, one backward.

    A stage is ahead of the last one by one part for each stage after it. So all are busy, and keep
    no more than that takes (Narayanan et al. 2019, "PipeDream", section 3.2). Backward, the parts
    are in their order, and so their gradients add up as in one process.
    """
    ahead = min(ahead, parts)
    for number in range(parts + ahead):
        if number < parts:
            yield Turn.FORWARD, number
        if number >= ahead:
            yield Turn.BACKWARD, number - ahead


class StageWork:
    """A helper's side of a pipeline: a stage that is not the last.

    Args:
        loaded: the task.
        network: the whole network, in training mode, of which it uses some layers.
        shared: where the gradients of these belong.
        task: which layers they are.
    """

    def __init__(
        self, loaded: LoadedTask, network: nn.Module, shared: SharedNetwork, task: StageTask
    ) -> None:
        self._loaded = loaded
        self._network = network
        self._shared = shared
        self._task = task
        with generators.ALONE:
            self._layers = layers_of(network)[task.begin : task.end]
        self._before = None if task.before is None else Link(task.before)
        self._after = Link(task.after)
        self._outputs: dict[int, Tensor] = {}

    def do(self, job: HelperJob, randomness: numerics.Randomness) -> Answer:
        """Let a job's parts pass, and leave the gradient of all in this stage's place."""
        after = self._task.stages - 1 - self._task.number
        for turn, place in turns(after, len(job.parts)):
            given = job.parts[place]
            if turn is Turn.BACKWARD:
                self._backward(given.number)
                continue
            randomness.begin(job.step, given.number)
            output = self._outputs[given.number] = self._output(given.part)
            others = self._loaded.spec.trains_own_code
            self._after.send(given.number, output, generators.state(beyond_torch=others))
        self._shared.put(self._task.number)
        return Answer(job=job.number)

    def forget(self) -> None:
        """Close the links to the neighbors, which wait for the failed job; then they fail too."""
        self._network.zero_grad()
        self._outputs.clear()
        for link in (self._before, self._after):
            if link is not None:
                link.close()

    def _output(self, part: BatchPart) -> Tensor:
        if self._before is None:
            entrance = Entrance(self._layers)
            with suppress(EntranceDone):
                add_gradient(self._loaded, entrance, part)
            return entrance.output
        with numerics.precision(self._loaded.spec):
            output: Tensor = run(self._layers, arrived(self._before, part.number))
            return output

    def _backward(self, number: int) -> None:
        output = self._outputs.pop(number)
        if output.requires_grad:
            gradient = self._after.receive().tensor
            torch.autograd.backward(output, gradient)


def arrived(link: Link, number: int, seconds: float | None = None) -> Tensor:
    """Wait for a part's tensor, whose gradient goes back; its generators become this process's."""
    parcel = link.receive(seconds)
    generators.go_on(parcel.generators)
    if not parcel.trained:
        return parcel.tensor
    tensor: Tensor = _Arrival.apply(torch.ones(()).requires_grad_(), parcel, link, number)
    return tensor


class _Arrival(torch.autograd.Function):
    """The entry of a tensor into a stage; on the way back its gradient leaves here.

    The first argument is only there to require a gradient. The result is no leaf, so the first
    layer may change it in place.
    """

    @staticmethod
    def forward(ctx: Any, _: Tensor, parcel: Parcel, link: Link, number: int) -> Tensor:
        ctx.link, ctx.number = link, number
        return parcel.tensor

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None, None]:
        ctx.link.send(ctx.number, gradients[0])
        return None, None, None, None


class Exit(nn.Module):
    """Stands for the network in the task's loss, with the last stage's output for a part.

    Args:
        layers: of the last stage.
        link: to the one before.
        wait_seconds: how long to wait for a part.
    """

    def __init__(self, layers: Sequence[Layer], link: Link, wait_seconds: float) -> None:
        super().__init__()
        self._layers = layers
        self._link = link
        self._wait_seconds = wait_seconds
        self.part = 0

    def forward(self, x: Tensor) -> Any:
        """Return the network's output for the part that arrives next."""
        del x  # the first stage has taken it
        return run(self._layers, arrived(self._link, self.part, self._wait_seconds))


class Pipeline:
    """Each helper has a stage, in their order, and the worker the last one.

    The last layers are mostly the dense ones, with most of the parameters. Their gradients are in
    the worker's own process, where the optimizer steps.

    Args:
        loaded: the task.
        network: the network, at its place in memory.
        processes: how many share its layers.
    """

    def __init__(self, loaded: LoadedTask, network: nn.Module, processes: int) -> None:
        spec = loaded.spec
        few = np.arange(min(spec.batch_size, loaded.count("train")))
        probe = probed(loaded, network, batch_parts(few, spec.parts)[0])
        *others, last = stages_of(loaded, probe, processes)
        self._part_seconds = sum(probe.seconds)
        self._layers = probe.layers[last.start :]
        self.gradients = len(others)
        links = [linked() for _ in others]
        self._stages = [
            StageTask(
                number=number,
                stages=len(others) + 1,
                begin=layers.start,
                end=layers.stop,
                before=links[number - 1][1] if number else None,
                after=links[number][0],
            )
            for number, layers in enumerate(others)
        ]
        self._link = Link(links[-1][1])

    def tasks(self, work: HelperTask) -> list[HelperTask]:
        """Tell each helper its stage."""
        return [replace(work, stage=stage) for stage in self._stages]

    def gradient(self, step: TeamStep) -> list[Tensor] | None:
        """Take each part from the stage before, in their order, and send its gradient back."""
        began = time.monotonic()
        job = step.job_of([JobPart.made_of(part) for part in step.parts])
        for helper in step.helpers:
            helper.give(job)
        expected_seconds = self._part_seconds * len(step.parts)
        end = Exit(self._layers, self._link, patience_seconds(expected_seconds))
        losses = []
        for part in step.parts:
            end.part = part.number
            losses.append(step.add(part, end))
        wait_seconds = patience_seconds(time.monotonic() - began)
        for place, helper in enumerate(step.helpers):
            if not helper.answer(job, wait_seconds).done:
                return None
            step.network.lend(place)
        return losses

    def close(self) -> None:
        """Close the link to the stage before."""
        self._link.close()
