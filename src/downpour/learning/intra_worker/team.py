"""A worker's helpers: it starts them, gives them their share of each step, or does without them."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from functools import cache
from pathlib import Path

from torch import Tensor, nn

from downpour.base.errors import OutOfMemory
from downpour.core.families import ARRANGEMENTS
from downpour.host.machine import free_memory, own_memory, usable_cores
from downpour.learning.blame import is_lack_of_memory
from downpour.learning.intra_worker.data import Arrangement, Division, TeamStep
from downpour.learning.intra_worker.helper_process import (
    HelperJob,
    HelperProcess,
    HelperTask,
    ProcessGone,
    SharedNetwork,
    create_memory,
)
from downpour.learning.shipping import folder_in_use
from downpour.learning.tasks.loaded import LoadedTask
from downpour.learning.training import numerics
from downpour.learning.training.step import TrainingStep

log = logging.getLogger(__name__)


class Team:
    """The helpers of one worker with one experiment.

    Training never waits for them to start, and goes on without them when one fails: the worker
    then computes the whole step on its own, to the same bytes. There are as many as memory has room
    for; when it does not suffice for a step, half as many processes go on from there.

    The network moves into shared memory. `processes` is how many there are with the worker's own at
    most, from 2 to as many as the spec says.
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
        self._most = processes or spec.inside.processes
        _warn_of_few_cores(self._most * spec.threads)
        self.steps_helped = 0
        self.shortages = 0
        self.processes = 1
        self._loaded, self._network = loaded, network
        self._work = HelperTask(
            spec=spec.to_toml(),
            datasets=str(datasets),
            data_key=data_key,
            gradients=0,
            code=str(folder_in_use() or ""),
        )
        numerics.place(network, spec, images=loaded.images)
        self._division: Division | None = None
        self._shared: SharedNetwork | None = None
        self._helpers: list[HelperProcess] = []
        self._memory = -1
        self.mend()

    def mend(self) -> None:
        """Start helpers if none run: as many as memory has room for by now."""
        if self._helpers:
            return
        # A helper needs at least as much as this process has for itself by now. Before the first
        # step that is torch, the network and the data, and later memory for a part of a batch.
        processes = min(self._most, 1 + free_memory() // max(1, own_memory()))
        if processes < self._most:
            log.warning("memory has room for %d of %d processes", processes, self._most)
        if processes == 1:
            return
        try:
            self._start(processes)
        except OSError as error:
            self._disband(f"cannot be started: {error}")

    def _start(self, processes: int) -> None:
        arrangement: Arrangement = ARRANGEMENTS[self._loaded.spec.inside.how]
        self._division = arrangement.divided(self._loaded, self._network, processes)
        gradients = self._division.gradients
        self._memory = create_memory()
        self._shared = SharedNetwork(self._network, self._memory, gradients).fill().attach()
        tasks = self._division.tasks(replace(self._work, gradients=gradients))
        try:
            for task in tasks:
                helper = HelperProcess.start(self._memory, task)
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
        """Wait until all helpers have built their networks; for tests and measurements."""
        for helper in self._helpers:
            if not helper.wait_until_ready(seconds):
                raise TimeoutError(f"a helper is still not ready after {seconds:g} s")

    def gradient(self, step: TrainingStep) -> list[Tensor] | None:
        """Compute a step's gradient with the helpers, if all are ready; see `StepHelp`."""
        self.processes = 1
        ready = self.is_whole and all(one.wait_until_ready(0.0) for one in self._helpers)
        if self._division is None or self._shared is None or not ready:
            return None
        self.steps_helped += 1
        job = HelperJob(
            number=self.steps_helped, task_seed=step.randomness.seed, step=step.number, parts=[]
        )
        together = TeamStep(helpers=self._helpers, network=self._shared, job=job, step=step)
        try:
            losses = self._division.gradient(together)
        except ProcessGone as gone:
            if self._ran_short(wait=True):
                self._take_fewer()
            else:
                self._disband(str(gone))
            return None
        except BaseException as error:
            if not (isinstance(error, MemoryError | OutOfMemory) or is_lack_of_memory(error)):
                self.close()  # they may wait for a message that this process was about to send
                raise
            self._take_fewer()
            return None
        if losses is not None:
            self.processes = len(self._helpers) + 1
        elif self._ran_short(wait=False):
            self._take_fewer()
        return losses

    def _ran_short(self, *, wait: bool) -> bool:
        return any(helper.ran_short(wait=wait) for helper in self._helpers)

    def _take_fewer(self) -> None:
        """Go on with half as many processes; the step that failed is computed alone."""
        before = len(self._helpers) + 1
        self.close()
        self.shortages += 1
        self._most = (before + 1) // 2
        log.warning("memory is too small for %d processes; continuing with %d", before, self._most)
        self.mend()

    def _disband(self, reason: str) -> None:
        """End all helpers; the worker goes on alone."""
        log.warning("a helper %s; this process trains alone", reason)
        self.close()

    def close(self) -> None:
        """End all helpers."""
        for helper in self._helpers:
            helper.end()
        self._helpers = []
        if self._division is not None:
            self._division.close()
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1


@cache  # only once, even if the team restarts its helpers
def _warn_of_few_cores(wanted: int) -> None:
    cores = usable_cores()
    if wanted > cores:
        log.warning("%d threads of all processes share %d cores", wanted, cores)
