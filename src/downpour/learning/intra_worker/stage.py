"""A stage of a pipeline: some consecutive layers, which all parts of a batch pass through.

A part arrives from the stage before as a tensor, with the state of its random generators, and
leaves for the next one in the same way. Its gradient comes back on the same links. So a stage
computes exactly the same as its layers would in the whole network, wherever that is cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn

from downpour.learning.intra_worker.jobs import Answer, HelperJob, StageTask
from downpour.learning.intra_worker.link import Link, Parcel
from downpour.learning.intra_worker.shared_network import SharedNetwork
from downpour.learning.models import generators
from downpour.learning.tasks.loaded import LoadedTask
from downpour.learning.training import numerics
from downpour.learning.training.entrance import Entrance, EntranceDone, run
from downpour.learning.training.layers import Layer, layers_of
from downpour.learning.training.step import BatchPart, add_gradient


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
    """Wait for a part's tensor, whose gradient goes back; its generators become this process's.

    Raises:
        ProcessGone: nothing comes, or not within some seconds.
    """
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
        """Return the network's output for the part that arrives next.

        Raises:
            ProcessGone: none does.
        """
        del x  # the first stage has taken it
        return run(self._layers, arrived(self._link, self.part, self._wait_seconds))
