"""A helper as its worker sees it: a process, the lines sent to it, and the lines it sends back."""

from __future__ import annotations

import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from socket import socket, socketpair
from typing import TextIO

from downpour.host.memory import kills, let_be_killed_first
from downpour.learning.intra_worker.jobs import Answer, HelperJob, HelperTask
from downpour.learning.intra_worker.link import ProcessGone
from downpour.learning.intra_worker.running import PIDS

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
    def start(cls, memory: int, work: HelperTask, lent: Sequence[int] = ()) -> HelperProcess:
        """Start a helper, which imports torch and builds the network meanwhile.

        Args:
            memory: the descriptor of the network's memory.
            work: what it trains.
            lent: further descriptors that it is given, named in `work`.

        Raises:
            OSError: it cannot be started.
        """
        mine, its = socketpair()
        with its:
            words = ["-m", "downpour.learning.intra_worker.helper", str(its.fileno()), str(memory)]
            process = subprocess.Popen(  # noqa: S603 - this package's own module
                [sys.executable, *words],
                pass_fds=(its.fileno(), memory, *lent),
                stdin=subprocess.DEVNULL,
            )
        # At once, because importing torch takes memory too. A worker goes on without its helper,
        # and no helper without its worker.
        let_be_killed_first(process.pid)
        PIDS.add(process.pid)
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
        """Wait until a job is done, or cannot be.

        Raises:
            ProcessGone: it has ended, or does not answer for so long.
        """
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
        PIDS.discard(self.process.pid)
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
            self.lines.write(line)
            self.lines.flush()
