"""The hybrid of data and model parallelism: parts of the batch, then slices of dense layers.

Each process sends its results to the worker, and the worker hands them to all others: slices of a
dense layer's outputs, and gradients of its inputs. Those are small. The dense layers' gradients are
large, so each process writes its own rows of them where the worker's optimizer reads them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor, nn

from downpour.learning.intra_worker.arrangement import TeamStep, blocks
from downpour.learning.intra_worker.helper_process import patience_seconds
from downpour.learning.intra_worker.jobs import Answer, HelperJob, HelperTask, JobPart, SliceTask
from downpour.learning.intra_worker.link import Link, linked
from downpour.learning.intra_worker.shared_network import SharedNetwork
from downpour.learning.tasks.loaded import LoadedTask
from downpour.learning.training import numerics
from downpour.learning.training.sliced_step import HybridStep


class Hybrid:
    """The worker's side.

    Args:
        loaded: the task; its spec says how many slices there are.
        network: the network, at its place in memory.
        processes: how many share parts and slices.

    Raises:
        SpecError: the network has no dense layer after others.
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
        """Collect what the helpers have, and send each what it lacks.

        Raises:
            ProcessGone: one has ended, or sends nothing.
        """
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
        """Send its own to the worker, which sends the others.

        Raises:
            ProcessGone: the worker has ended.
        """
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
