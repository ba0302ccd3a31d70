"""The share of a step that each process of a worker computes, seen from the worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from torch import Tensor

from downpour.learning.intra_worker.helper_process import HelperProcess
from downpour.learning.intra_worker.jobs import HelperJob, HelperTask, JobPart
from downpour.learning.intra_worker.shared_network import SharedNetwork
from downpour.learning.training.step import BatchPart, GradientOf


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
