"""Pipeline parallelism, on the worker's side: it has the network's last layers and the loss.

The last layers are mostly the dense ones, with most of the parameters. Their gradients are in the
worker's own process, where the optimizer steps.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
from torch import Tensor, nn

from downpour.learning.intra_worker.arrangement import TeamStep
from downpour.learning.intra_worker.helper_process import patience_seconds
from downpour.learning.intra_worker.jobs import HelperTask, JobPart, StageTask
from downpour.learning.intra_worker.link import Link, linked
from downpour.learning.intra_worker.stage import Exit
from downpour.learning.tasks.loaded import LoadedTask
from downpour.learning.training.cut import stages_of
from downpour.learning.training.probe import probed
from downpour.learning.training.step import batch_parts


class Pipeline:
    """Each helper has a stage, in their order, and the worker the last one.

    Args:
        loaded: the task.
        network: the network, at its place in memory.
        processes: how many share its layers.

    Raises:
        SpecError: it cannot be cut as the spec says.
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
