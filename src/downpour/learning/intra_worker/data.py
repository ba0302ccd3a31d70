"""Arrangements, and the one that divides the batch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from downpour.core.spec import Spec
from downpour.learning.intra_worker.helper_process import (
    Answer,
    HelperJob,
    HelperProcess,
    HelperTask,
    JobPart,
    patience_seconds,
)
from downpour.learning.intra_worker.shared_network import SharedNetwork
from downpour.learning.tasks.loaded import LoadedTask
from downpour.learning.training import numerics
from downpour.learning.training.step import BatchPart, GradientOf, add_gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamStep:
    """A step that a worker takes with its helpers.

    `job` is the job that they get, without the parts. `add` adds the gradient of a part, of the
    whole network or through the module that stands for it.
    """

    helpers: Sequence[HelperProcess]
    network: SharedNetwork
    job: HelperJob
    parts: Sequence[BatchPart]
    add: GradientOf

    def job_of(self, parts: Sequence[JobPart]) -> HelperJob:
        """Return the job of some parts."""
        return replace(self.job, parts=list(parts))


class Arrangement(Protocol):
    """Divides a step among a worker and its helpers."""

    @property
    def gradients(self) -> int:
        """How many gradients need a place in the shared memory."""

    def tasks(self, work: HelperTask) -> list[HelperTask]:
        """Return the task of each helper, given the fields that are the same for all."""

    def gradient(self, step: TeamStep) -> list[Tensor] | None:
        """Compute a step's gradient, see `training.step.StepHelp`.

        Raises:
            ProcessGone: a helper has ended, or does not answer.
        """

    def close(self) -> None:
        """Release the resources that only the helpers needed."""


def blocks(count: int, processes: int) -> list[list[int]]:
    """Divide the numbers of parts or slices among processes: nearly equal runs, longer ones first.

    Returns:
        Each process's numbers, beginning with the worker's own.
    """
    return [block.tolist() for block in np.array_split(np.arange(count), processes)]


class DataParallel:
    """The worker's side: it computes the first parts, and adds up all in their order.

    Args:
        spec: says how many parts there are.
        processes: how many share them.
    """

    def __init__(self, spec: Spec, processes: int) -> None:
        self._processes = processes
        self.gradients = spec.parts - len(blocks(spec.parts, self._processes)[0])

    def tasks(self, work: HelperTask) -> list[HelperTask]:
        """Tell all helpers the same."""
        return [work] * (self._processes - 1)

    def gradient(self, step: TeamStep) -> list[Tensor] | None:
        """Add up the parts' gradients; None if a helper could not compute one."""
        began = time.monotonic()
        own, *others = blocks(len(step.parts), self._processes)
        given = []
        for helper, numbers in zip(step.helpers, others, strict=True):
            parts = [JobPart.made_of(step.parts[n], place=n - len(own)) for n in numbers]
            helper.give(step.job_of(parts))
            given.append((helper, parts))
        losses = [step.add(step.parts[number]) for number in own]
        wait_seconds = patience_seconds(time.monotonic() - began)
        for helper, parts in given:
            answer = helper.answer(step.job, wait_seconds)
            if not answer.done:
                return None
            for part in parts:
                step.network.add(part.place)
            losses += [torch.tensor(loss, dtype=losses[0].dtype) for _, loss in answer.losses]
        return losses

    def close(self) -> None:
        """Do nothing: helpers have no links among them."""


class PartWork:
    """A helper's side: it leaves the gradient of each of its parts in its place."""

    def __init__(self, loaded: LoadedTask, network: nn.Module, shared: SharedNetwork) -> None:
        self._loaded = loaded
        self._network = network
        self._shared = shared

    def do(self, job: HelperJob, randomness: numerics.Randomness) -> Answer:
        """Compute the gradients of a job's parts."""
        losses = []
        for given in job.parts:
            randomness.begin(job.step, given.number)
            loss = add_gradient(self._loaded, self._network, given.part)
            self._shared.put(given.place)
            losses.append((given.number, loss.tolist()))
        return Answer(job=job.number, losses=tuple(losses))

    def forget(self) -> None:
        """Drop what a part that failed has left in the network."""
        self._network.zero_grad()
