"""Arrangements, and the one that divides the batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from downpour.learning.intra_worker.helper_process import (
    Answer,
    HelperJob,
    HelperProcess,
    HelperTask,
    JobPart,
    SharedNetwork,
    patience_seconds,
)
from downpour.learning.tasks.loaded import LoadedTask
from downpour.learning.training import numerics
from downpour.learning.training.step import BatchPart, StepHelp, TrainingStep, add_gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamStep:
    """A step that a worker takes with its helpers; each gets `job` with the parts that it needs."""

    helpers: Sequence[HelperProcess]
    network: SharedNetwork
    job: HelperJob
    step: TrainingStep

    def job_of(self, parts: Sequence[JobPart]) -> HelperJob:
        """Return the job of some parts."""
        return replace(self.job, parts=list(parts))


class Division(Protocol):
    """Divides the steps of one worker among it and its helpers: the worker's side."""

    @property
    def gradients(self) -> int:
        """How many gradients need a place in the shared memory."""

    def tasks(self, work: HelperTask) -> list[HelperTask]:
        """Return the task of each helper, given the fields that are the same for all."""

    def gradient(self, together: TeamStep) -> list[Tensor] | None:
        """Compute a step's gradient, see `training.step.StepHelp`.

        Raises:
            ProcessGone: a helper has ended, or does not answer.
        """

    def close(self) -> None:
        """Release the resources that only the helpers needed."""


class HelperWork(Protocol):
    """A helper's share of a step."""

    def do(self, job: HelperJob, randomness: numerics.Randomness) -> Answer:
        """Do a job, among settings and generators of its task."""

    def forget(self) -> None:
        """Drop what a job that failed has left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """A way to divide steps: a member of the family `ARRANGEMENTS`."""

    divided: Callable[[LoadedTask, nn.Module, int], Division]
    """Returns the worker's side for some processes, with a network at its place in memory."""
    helping: Callable[[LoadedTask, nn.Module, SharedNetwork, Mapping[str, Any]], HelperWork]
    """Returns a helper's side, with the `share` of its task."""
    check: Callable[[LoadedTask, BatchPart], None] = lambda *_: None
    """Refuses a network that cannot be divided so, by trying it on a part of a batch."""
    alone: Callable[[LoadedTask, nn.Module], StepHelp | None] = lambda *_: None
    """Returns how one process computes a step; None: part after part."""
    needs_whole_batch: bool = False
    """Whether a step holds all examples of a batch at once."""


def blocks(count: int, processes: int) -> list[list[int]]:
    """Divide the numbers of parts or slices among processes: nearly equal runs, longer ones first.

    Returns:
        Each process's numbers, beginning with the worker's own.
    """
    return [block.tolist() for block in np.array_split(np.arange(count), processes)]


class DataParallel:
    """The worker's side: it computes the first parts, and adds up all in their order."""

    def __init__(self, loaded: LoadedTask, _: nn.Module, processes: int) -> None:
        self._processes = processes
        parts = loaded.spec.parts
        self.gradients = parts - len(blocks(parts, processes)[0])

    def tasks(self, work: HelperTask) -> list[HelperTask]:
        """Tell all helpers the same."""
        return [work] * (self._processes - 1)

    def gradient(self, together: TeamStep) -> list[Tensor] | None:
        """Add up the parts' gradients; None if a helper could not compute one."""
        began, step = time.monotonic(), together.step
        all_parts = step.parts
        own, *others = blocks(len(all_parts), self._processes)
        jobs = []
        for helper, numbers in zip(together.helpers, others, strict=True):
            parts = [JobPart.made_of(all_parts[n], place=n - len(own)) for n in numbers]
            helper.give(together.job_of(parts))
            jobs.append((helper, parts))
        losses = [step.add(all_parts[number]) for number in own]
        wait_seconds = patience_seconds(time.monotonic() - began)
        for helper, parts in jobs:
            answer = helper.answer(together.job, wait_seconds)
            if not answer.done:
                return None
            for part in parts:
                together.network.add(part.place)
            losses += [torch.tensor(loss, dtype=losses[0].dtype) for _, loss in answer.losses]
        return losses

    def close(self) -> None:
        """Do nothing: helpers have no links among them."""


class PartWork:
    """A helper's side: it leaves the gradient of each of its parts in its place."""

    def __init__(
        self, loaded: LoadedTask, network: nn.Module, shared: SharedNetwork, _: Mapping[str, Any]
    ) -> None:
        self._loaded = loaded
        self._network = network
        self._shared = shared

    def do(self, job: HelperJob, randomness: numerics.Randomness) -> Answer:
        """Compute the gradients of a job's parts."""
        losses = []
        for part in job.parts:
            randomness.begin(job.step, part.number)
            loss = add_gradient(self._loaded, self._network, part.part)
            self._shared.put(part.place)
            losses.append((part.number, loss.tolist()))
        return Answer(job=job.number, losses=tuple(losses))

    def forget(self) -> None:
        """Drop what a part that failed has left in the network."""
        self._network.zero_grad()


DATA = Arrangement(divided=DataParallel, helping=PartWork)
