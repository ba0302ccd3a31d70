"""A pipeline: each process of a worker has some layers, which all parts of a batch pass through.

A part of the batch arrives from the stage before as a tensor, with the state of its
random generators. It leaves for the next one in the same way, and its gradient comes back on the
same links. So wherever the network is cut, a stage computes exactly the same as its layers would in
the whole.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from downpour.learning import numerics
from downpour.learning.intra_worker.helper_process import (
    Answer,
    HelperJob,
    HelperTask,
    JobPart,
    SharedNetwork,
    patience_seconds,
)
from downpour.learning.intra_worker.team import Arrangement, TeamStep
from downpour.learning.numerics import ALONE
from downpour.learning.tasks.loaded import LoadedTask
from downpour.learning.training.step import BatchPart, add_gradient, batch_parts
from downpour_lab.inside.cut import (
    Entrance,
    EntranceDone,
    Layer,
    check_same_bytes,
    layers_of,
    probed,
    run,
    stages_of,
)
from downpour_lab.inside.links import Link, LinkEnd, Parcel, generators_state, go_on, linked


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTask:
    """Which layers of the network a helper has, and the links to its neighbors."""

    number: int
    stages: int
    begin: int  # numbers of layers
    end: int
    before: LinkEnd | None  # of the first stage: none
    after: LinkEnd

    @property
    def descriptors(self) -> list[int]:
        """The file descriptors of its ends of links."""
        return [*(self.before.descriptors if self.before else ()), *self.after.descriptors]


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

    It uses the layers of the network that `share`, a `StageTask`, names; their gradients belong in
    `shared`.
    """

    def __init__(
        self,
        loaded: LoadedTask,
        network: nn.Module,
        shared: SharedNetwork,
        share: Mapping[str, Any],
    ) -> None:
        self._loaded = loaded
        self._network = network
        self._shared = shared
        task = self._task = msgspec.convert(share, StageTask)
        with ALONE:
            self._layers = layers_of(network)[task.begin : task.end]
        self._before = None if task.before is None else Link(task.before)
        self._after = Link(task.after)
        self._outputs: dict[int, Tensor] = {}

    def do(self, job: HelperJob, randomness: numerics.Randomness) -> Answer:
        """Let a job's parts pass, and leave the gradient of all in this stage's place."""
        after = self._task.stages - 1 - self._task.number
        for turn, place in turns(after, len(job.parts)):
            number = job.parts[place].number
            if turn is Turn.BACKWARD:
                output = self._outputs.pop(number)
                if output.requires_grad:
                    torch.autograd.backward(output, self._after.receive().tensor)
                continue
            randomness.begin(job.step, number)
            output = self._outputs[number] = self._output(job.parts[place].part)
            others = self._loaded.spec.trains_own_code
            self._after.send(number, output, generators_state(beyond_torch=others))
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


def arrived(link: Link, number: int, seconds: float | None = None) -> Tensor:
    """Wait for a part's tensor, whose gradient goes back; its generators become this process's."""
    parcel = link.receive(seconds)
    go_on(parcel.generators)
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

    It waits at most `wait_seconds` for a part from the link to the stage before.
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


class StagesDivided:
    """The worker's side: each helper has a stage, in their order, and the worker the last one.

    The last layers are mostly the dense ones, with most of the parameters. Their gradients are in
    the worker's own process, where the optimizer steps.
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
        return [
            replace(work, share=asdict(stage), descriptors=stage.descriptors)
            for stage in self._stages
        ]

    def gradient(self, together: TeamStep) -> list[Tensor] | None:
        """Take each part from the stage before, in their order, and send its gradient back."""
        began = time.monotonic()
        parts = together.step.parts
        job = together.job_of([JobPart.made_of(part) for part in parts])
        for helper in together.helpers:
            helper.give(job)
        expected_seconds = self._part_seconds * len(parts)
        end = Exit(self._layers, self._link, patience_seconds(expected_seconds))
        losses = []
        for part in parts:
            end.part = part.number
            losses.append(together.step.add(part, end))
        wait_seconds = patience_seconds(time.monotonic() - began)
        for place, helper in enumerate(together.helpers):
            if not helper.answer(job, wait_seconds).done:
                return None
            together.network.lend(place)
        return losses

    def close(self) -> None:
        """Close the link to the stage before."""
        self._link.close()


def _check(loaded: LoadedTask, part: BatchPart) -> None:
    """Refuse a network that cannot be cut as its spec says, or gives other bytes in layers."""
    network = loaded.network()
    numerics.place(network, loaded.spec, images=loaded.images)
    stages_of(loaded, probed(loaded, network, part))
    check_same_bytes(loaded, network, part)


PIPELINE = Arrangement(divided=StagesDivided, helping=StageWork, check=_check)
"""Each process has some layers, which all parts pass through."""
