"""A worker's helpers: started, given their share of each step, and done without if need be."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from torch import Tensor, nn

from downpour.base.errors import SpecError
from downpour.host.cores import usable_cores
from downpour.learning.intra_worker.arrangement import Arrangement, TeamStep
from downpour.learning.intra_worker.helper_process import HelperProcess
from downpour.learning.intra_worker.jobs import HelperJob, HelperTask
from downpour.learning.intra_worker.link import ProcessGone
from downpour.learning.intra_worker.shared_memory import create_memory
from downpour.learning.intra_worker.shared_network import SharedNetwork
from downpour.learning.tasks.loaded import LoadedTask
from downpour.learning.training import numerics
from downpour.learning.training.step import BatchPart, GradientOf

log = logging.getLogger(__name__)


class Team:
    """The helpers of one worker with one experiment.

    Training never waits for them to start, and goes on without them when one fails: the worker
    then computes the whole step by itself, to the same bytes.

    Args:
        loaded: the task; its spec says how many processes it is for, and what each has.
        network: what is trained, at its place in memory; it moves into shared memory.
        datasets: the folder of prepared data.
        data_key: the data's name in it.
        processes: how many there are with the worker's own, from 2 to as many as it is for.

    Raises:
        SpecError: the network cannot be cut as the spec says.
    """

    def __init__(
        self,
        loaded: LoadedTask,
        network: nn.Module,
        datasets: Path,
        data_key: str,
        processes: int | None = None,
    ) -> None:
        spec = loaded.spec
        processes = processes or spec.inside.processes
        _warn_of_few_cores(processes * spec.threads)
        self.steps_helped = 0
        numerics.place(network, spec, images=loaded.images)
        self._arrangement = _arranged(loaded, network, processes)
        gradients = self._arrangement.gradients
        self._memory = create_memory()
        self._shared = SharedNetwork(network, self._memory, gradients).fill().attach()
        work = HelperTask(
            spec=spec.to_toml(), datasets=str(datasets), data_key=data_key, gradients=gradients
        )
        self._helpers: list[HelperProcess] = []
        try:
            self._start(work)
        except OSError as error:
            self._disband(f"cannot be started: {error}")

    def _start(self, work: HelperTask) -> None:
        tasks = self._arrangement.tasks(work)
        try:
            for task in tasks:
                helper = HelperProcess.start(self._memory, task, task.descriptors)
                self._helpers.append(helper)
        finally:
            # Only then a helper that waits for another one sees that it has ended.
            for descriptor in (one for task in tasks for one in task.descriptors):
                os.close(descriptor)

    @property
    def is_whole(self) -> bool:
        """Whether all helpers are there, or about to be."""
        return bool(self._helpers)

    @property
    def pids(self) -> list[int]:
        """The processes of the helpers."""
        return [helper.process.pid for helper in self._helpers]

    def wait_until_ready(self, seconds: float) -> None:
        """Wait until all helpers have built their networks; for tests and measurements.

        Raises:
            TimeoutError: one has not.
        """
        for helper in self._helpers:
            if not helper.wait_until_ready(seconds):
                raise TimeoutError(f"a helper is not ready after {seconds:g} s")

    def gradient(
        self, task_seed: int, step: int, parts: Sequence[BatchPart], add: GradientOf
    ) -> list[Tensor] | None:
        """Compute a step's gradient with the helpers, if all are ready; see `loop.Helpers`."""
        if not self._helpers or not all(helper.wait_until_ready(0.0) for helper in self._helpers):
            return None
        self.steps_helped += 1
        job = HelperJob(number=self.steps_helped, task_seed=task_seed, step=step, parts=[])
        together = TeamStep(
            helpers=self._helpers, network=self._shared, job=job, parts=parts, add=add
        )
        try:
            return self._arrangement.gradient(together)
        except ProcessGone as gone:
            self._disband(str(gone))
            return None
        except BaseException:
            self.close()  # they may wait for what this process was about to send
            raise

    def _disband(self, reason: str) -> None:
        """End all helpers; the worker goes on alone."""
        log.warning("a helper %s; this process trains alone", reason)
        self.close()

    def close(self) -> None:
        """End all helpers."""
        for helper in self._helpers:
            helper.end()
        self._helpers = []
        self._arrangement.close()
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1


def _arranged(loaded: LoadedTask, network: nn.Module, processes: int) -> Arrangement:
    match loaded.spec.inside.how:
        case "data":
            from downpour.learning.intra_worker.data import DataParallel

            return DataParallel(loaded.spec, processes)
        case "pipeline":
            from downpour.learning.intra_worker.pipeline import Pipeline

            return Pipeline(loaded, network, processes)
        case "hybrid":
            from downpour.learning.intra_worker.hybrid import Hybrid

            return Hybrid(loaded, network, processes)
        case "auto":
            raise SpecError("inside.how", "auto", "must be measured before the spec is resolved")


@cache  # once, and not again where helpers are started anew
def _warn_of_few_cores(wanted: int) -> None:
    cores = usable_cores()
    if wanted > cores:
        log.warning("%d threads of all processes share %d cores", wanted, cores)
