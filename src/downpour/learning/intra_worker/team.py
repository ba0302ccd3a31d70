"""Arrangements, the one that divides the batch, and a worker's helpers.

A `Team` starts the helpers, gives them their share of each step, or does without them. A helper is
this module as a process, `python -m downpour.learning.intra_worker.team SOCKET MEMORY`, which
computes until its worker is gone. Both words are file descriptors.
"""

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from socket import socket
from typing import Any, Protocol, TextIO

import numpy as np
import torch
from torch import Tensor, nn

from downpour.base.errors import OutOfMemory
from downpour.core.families import ARRANGEMENTS
from downpour.core.spec import Spec
from downpour.host.machine import free_memory, own_memory, usable_cores
from downpour.learning import numerics
from downpour.learning.blame import is_lack_of_memory, users_errors
from downpour.learning.intra_worker.helper_process import (
    Answer,
    HelperJob,
    HelperProcess,
    HelperTask,
    JobPart,
    ProcessGone,
    SharedNetwork,
    create_memory,
    patience_seconds,
)
from downpour.learning.shipping import folder_in_use, use
from downpour.learning.tasks.agreement import open_data
from downpour.learning.tasks.loaded import LoadedTask, load
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
        """Compute a step's gradient, see `StepHelp`; raises ProcessGone if a helper has ended."""

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
    """Divide the numbers of parts or slices among processes, beginning with the worker's own.

    Each gets a run of them, nearly equal, longer ones first.
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


@dataclass(frozen=True, slots=True)
class PartWork:
    """A helper's side: it leaves the gradient of each of its parts in its place."""

    loaded: LoadedTask
    network: nn.Module
    shared: SharedNetwork
    share: Mapping[str, Any]

    def do(self, job: HelperJob, randomness: numerics.Randomness) -> Answer:
        """Compute the gradients of a job's parts."""
        losses = []
        for part in job.parts:
            randomness.begin(job.step, part.number)
            loss = add_gradient(self.loaded, self.network, part.part)
            self.shared.put(part.place)
            losses.append((part.number, loss.tolist()))
        return Answer(job=job.number, losses=tuple(losses))

    def forget(self) -> None:
        """Drop what a part that failed has left in the network."""
        self.network.zero_grad()


DATA = Arrangement(divided=DataParallel, helping=PartWork)


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


class Helper:
    """Builds the network that its worker trains, in the same memory."""

    def __init__(self, work: HelperTask, memory: int) -> None:
        spec = Spec.from_toml(work.spec)
        if work.code:
            use(Path(work.code))
        torch.set_num_threads(spec.threads)
        data = open_data(spec, Path(work.datasets), work.data_key)
        loaded = load(spec, data)
        network = loaded.network()
        self._spec = loaded.spec
        numerics.place(network, self._spec, images=loaded.images)
        shared = SharedNetwork(network, memory, work.gradients).attach()
        network.train()
        arrangement: Arrangement = ARRANGEMENTS[self._spec.inside.how]
        self._work = arrangement.helping(loaded, network, shared, work.share)

    def do(self, job: HelperJob) -> Answer:
        """Do what the worker asks for; the answer says if it failed."""
        randomness = numerics.Randomness(
            job.task_seed, self._spec.device, beyond_torch=self._spec.trains_own_code
        )
        try:
            with numerics.settings(self._spec), randomness.active():
                return self._work.do(job, randomness)
        except users_errors() as error:
            # The worker computes the step on its own, and tells what is wrong if that fails.
            self._work.forget()
            return Answer(job=job.number, done=False, short=isinstance(error, OutOfMemory))


def help_worker(lines: Iterable[str], answers: TextIO, memory: int) -> None:
    """Answer each line: the first names the work, each further one is a job of it."""
    arriving = iter(lines)
    helper = Helper(HelperTask.of(next(arriving)), memory)
    print(Answer(job=0).to_line(), file=answers, flush=True)
    for line in arriving:
        print(helper.do(HelperJob.of(line)).to_line(), file=answers, flush=True)


def main() -> None:
    """Help the worker that started this process."""
    # A terminal's Ctrl-C and Slurm's warnings go to all processes; the worker decides when its
    # helpers end.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    connection, memory = (int(word) for word in sys.argv[1:])
    try:
        with socket(fileno=connection) as worker, worker.makefile("rw") as lines:
            help_worker(lines, lines, memory)
    except (BrokenPipeError, ConnectionResetError, StopIteration):
        return  # the worker has ended


if __name__ == "__main__":
    main()
