"""A helper as the worker sees it: its process, its jobs, and the network in memory that both share.

Jobs and answers are lines that go through a pair of sockets without a name, between a process and
the one it started. The worker's optimizer writes the parameters in place, so its helpers see them
without a copy. The helpers' results have separate places: one for each gradient, of all parameters
or some.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import compress
from socket import socket, socketpair
from typing import Any, Self, TextIO

import numpy as np
import torch
from torch import Tensor, nn

from downpour.host.child import JsonLine
from downpour.host.machine import HELPER_PIDS, kills, let_be_killed_first
from downpour.learning.accelerators import is_plain
from downpour.learning.training.step import BatchPart

ALIGNMENT = 64
"""Bytes; a cache line, which is also what the widest vector instructions want."""


def create_memory() -> int:
    """Return a file descriptor of memory without a name, which ends with its processes."""
    return os.memfd_create("downpour-inside", os.MFD_CLOEXEC)


def aligned(size: int) -> int:
    """Return a number of bytes, rounded up to where the next thing may begin."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def mapped(descriptor: int, size: int) -> Tensor:
    """Return the first bytes [size] of memory as a tensor over it."""
    path = f"/proc/self/fd/{descriptor}"
    return torch.from_file(path, shared=True, size=size, dtype=torch.uint8)


_Place = tuple[int, Tensor]
"""A tensor's offset in the memory, and a tensor of the same layout."""


class SharedNetwork:
    """Puts a network's tensors into shared memory; its parameters and buffers become views of it.

    Both sides build the same network, so they give each tensor the same place. After the tensors,
    there are places for `gradients` of them, which take no memory until somebody writes them.
    """

    def __init__(self, network: nn.Module, memory: int, gradients: int) -> None:
        self._trained = [value for value in network.parameters() if value.requires_grad]
        # A sparse buffer, say, stays each side's own: it is constant.
        shared = filter(is_plain, (*network.parameters(), *network.buffers()))
        state, size = _placed(shared, 0)
        rows: list[list[_Place]] = []
        for _ in range(gradients):
            row, size = _placed(self._trained, size)
            rows.append(row)
        # One flag for each gradient of a parameter, because a step need not reach every one.
        reached = size
        size += gradients * len(self._trained)
        if os.fstat(memory).st_size < size:
            os.ftruncate(memory, size)
        self._memory = mapped(memory, size)
        self._state = [(like, self._view(offset, like)) for offset, like in state]
        self._gradients = [[self._view(*place) for place in row] for row in rows]
        self._reached = self._memory[reached:].view(gradients, len(self._trained))

    def fill(self) -> Self:
        """Copy the network's present values into the memory: once, by the process that made it."""
        for value, view in self._state:
            view.copy_(value.detach())
        return self

    def attach(self) -> Self:
        """Move the network's tensors to the memory, and let them take the values in it."""
        for value, view in self._state:
            value.data = view
        return self

    def put(self, number: int) -> None:
        """Copy the network's gradients to one of the places, and forget them."""
        for index, (value, view) in enumerate(
            zip(self._trained, self._gradients[number], strict=True)
        ):
            self._reached[number, index] = value.grad is not None
            if value.grad is not None:
                view.copy_(value.grad)
                value.grad = None

    def add(self, number: int) -> None:
        """Add the gradients in one of the places to the network's."""
        mine, theirs = [], []
        for value, view in self._reached_in(number):
            if value.grad is None:
                value.grad = view.clone(memory_format=torch.preserve_format)
            else:
                mine.append(value.grad)
                theirs.append(view)
        if mine:
            torch._foreach_add_(mine, theirs)

    def gradient(self, number: int, parameter: Tensor) -> Tensor:
        """Return the part of one of the places that is for a parameter's gradient."""
        index = next(n for n, value in enumerate(self._trained) if value is parameter)
        return self._gradients[number][index]

    def lend(self, number: int) -> None:
        """Let the gradients in one of the places be the network's, without a copy.

        For parameters that no other process has a gradient of.
        """
        for value, view in self._reached_in(number):
            value.grad = view

    def _reached_in(self, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the parameters that have a gradient in one of the places, with that."""
        reached = self._reached[number].tolist()
        pairs = zip(self._trained, self._gradients[number], strict=True)
        return compress(pairs, reached)

    def _view(self, offset: int, like: Tensor) -> Tensor:
        bytes_ = self._memory[offset : offset + like.nbytes].view(like.dtype)
        return bytes_.as_strided(like.size(), _strides(like))


def _placed(tensors: Iterable[Tensor], offset: int) -> tuple[list[_Place], int]:
    """Return a place for each tensor from an offset on, and where the last ends."""
    places = []
    for value in tensors:
        places.append((offset, value))
        offset += aligned(value.nbytes)
    return places, offset


def _strides(like: Tensor) -> tuple[int, ...]:
    """Return the layout of a tensor, or the plain one where elements overlap or have gaps."""
    if torch.ops.aten.is_non_overlapping_and_dense(like):
        return like.stride()
    return torch.empty(like.size(), device="meta").stride()


class ProcessGone(Exception):
    """A process of the worker has ended, or does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperTask(JsonLine):
    """The training of a helper."""

    spec: str  # as TOML
    datasets: str  # the folder of the prepared data
    data_key: str
    gradients: int  # how many the shared memory has a place for
    share: Mapping[str, Any] = field(default_factory=dict)  # what the arrangement tells this helper
    # further ones that the helper is given, named in `share`
    descriptors: list[int] = field(default_factory=list)
    code: str = ""  # the folder of the bundle that its worker imports from; empty: of none


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPart:
    """A part of a batch: its number, its share of the batch, and the indices of its examples.

    `place` is where a helper that has all layers leaves its gradient in the shared memory.
    """

    number: int
    share: float
    indices: list[int]
    place: int = 0

    @classmethod
    def made_of(cls, part: BatchPart, place: int = 0) -> Self:
        """Write a part down."""
        indices = part.indices.tolist()
        return cls(number=part.number, share=part.share, indices=indices, place=place)

    @property
    def part(self) -> BatchPart:
        """The part itself."""
        indices = np.array(self.indices, dtype=np.int64)
        return BatchPart(number=self.number, indices=indices, share=self.share)


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperJob(JsonLine):
    """The parts that a helper computes of a step of the task with a seed; counted by `number`."""

    number: int
    task_seed: int
    step: int
    parts: list[JobPart]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(JsonLine):
    """Whether a job is `done`, and the losses of those parts that end with the helper, by number.

    A loss is a number, or a sum and a count.

    A job that is not done was `short` of memory, or failed in another way. The first answer is to
    no job: the helper is ready.
    """

    job: int
    done: bool = True
    short: bool = False
    losses: tuple[tuple[int, float | list[float]], ...] = ()


_WAIT_SECONDS = 60.0
_WAIT_FACTOR = 10.0
"""A helper is given up when it takes longer than a minute and ten times what its worker took for
as much: it was stopped, or its machine swaps."""

_ENDING_SECONDS = 1.0
"""How long a process may take to end, or to say why it has failed, once its links are closed."""

_NOTHING = Answer(job=0, done=False)


def patience_seconds(taken_seconds: float) -> float:
    """Return how long to wait for a helper whose work should take so long."""
    return _WAIT_SECONDS + _WAIT_FACTOR * taken_seconds


@dataclass(slots=True)
class HelperProcess:
    """One helper."""

    process: subprocess.Popen[bytes]
    connection: socket
    lines: TextIO
    answered: Answer | None = None
    kills_before: int = field(default_factory=kills)

    @classmethod
    def start(cls, memory: int, work: HelperTask) -> HelperProcess:
        """Start a helper, which imports torch and builds the network meanwhile."""
        mine, its = socketpair()
        with its:
            words = ["-m", "downpour.learning.intra_worker.team", str(its.fileno()), str(memory)]
            process = subprocess.Popen(  # noqa: S603 - this package's own module
                [sys.executable, *words],
                pass_fds=(its.fileno(), memory, *work.descriptors),
                stdin=subprocess.DEVNULL,
            )
        # At once, because importing torch takes memory too. A worker goes on without its helper,
        # and no helper without its worker.
        let_be_killed_first(process.pid)
        HELPER_PIDS.add(process.pid)
        helper = cls(process, mine, mine.makefile("rw"))
        helper._write(work.to_line())
        return helper

    def wait_until_ready(self, seconds: float) -> bool:
        """Return whether it has built its network, or has ended over it."""
        if self.answered is None and self._arrives(seconds):
            self.answered = self._read() or _NOTHING
        return self.answered is not None

    def give(self, job: HelperJob) -> None:
        """Ask for a job."""
        self._write(job.to_line())

    def answer(self, job: HelperJob, wait_seconds: float) -> Answer:
        """Wait until a job is done, or cannot be."""
        # An answer to an earlier job is to one of which another helper could not do its share.
        while self.answered is None or self.answered.job != job.number:
            if not self._arrives(wait_seconds):
                raise ProcessGone(f"does not answer for {wait_seconds:.0f} s")
            self.answered = self._read()
            if self.answered is None:
                raise ProcessGone("has ended")
        return self.answered

    def ran_short(self, *, wait: bool) -> bool:
        """Whether memory did not suffice for a job that failed.

        Either it says so, or the kernel has killed a process for lack of memory since it started,
        and this one was killed. `wait` for a word of it, or its end, if its links are closed.
        """
        if self._arrives(_ENDING_SECONDS if wait else 0.0):
            self.answered = self._read()
            if self.answered is None:  # it has ended
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(_ENDING_SECONDS)
        if self.process.returncode == -signal.SIGKILL:
            return kills() > self.kills_before
        return self.answered is not None and self.answered.short

    def end(self) -> None:
        """Kill it; it holds nothing that is worth a goodbye."""
        HELPER_PIDS.discard(self.process.pid)
        self.process.kill()
        self.process.wait()
        with suppress(OSError):
            self.lines.close()
        self.connection.close()

    def _arrives(self, seconds: float) -> bool:
        return bool(select.select([self.connection], [], [], seconds)[0])

    def _read(self) -> Answer | None:
        with suppress(OSError, ValueError):
            return Answer.of(self.lines.readline())
        return None

    def _write(self, line: str) -> None:
        with suppress(OSError):  # it has ended; the next answer is awaited in vain
            print(line, file=self.lines, flush=True)
