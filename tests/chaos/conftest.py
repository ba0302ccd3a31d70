"""Real processes on a stage, and what is done to them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from random import Random
from threading import Thread
from time import monotonic
from typing import IO

import pytest

PATIENCE_SECONDS = 120.0
COMMAND = [sys.executable, "-m", "downpour.cli"]
QUIET = {**os.environ, "OMP_NUM_THREADS": "1"}


class Process:
    """A command that serves; everything that it says is heard."""

    def __init__(self, *words: str) -> None:
        self.words = words
        self.said: list[str] = []
        self._lines = SimpleQueue[str]()
        self.popen = subprocess.Popen(
            [*COMMAND, *words], stderr=subprocess.PIPE, text=True, env=QUIET
        )
        self._listener = Thread(target=self._listen, args=(self.popen.stderr,))
        self._listener.start()

    def says(self, pattern: str) -> re.Match[str]:
        """Wait until it says something."""
        while not (found := re.search(pattern, self._lines.get(timeout=PATIENCE_SECONDS))):
            assert self.said, "it ended without a word"
        return found

    def _listen(self, pipe: IO[str]) -> None:
        with pipe:
            for line in pipe:
                self.said.append(line)
                self._lines.put(line)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it is there."""
        with suppress(ProcessLookupError):
            self.popen.send_signal(number)

    def kill(self) -> None:
        """End it without a warning."""
        self.signal(signal.SIGKILL)
        self.popen.wait()
        self._listener.join()


class Stage:
    """A manager, two workers, and a client that waits for the end.

    Args:
        shared: the shared directory.
        seed: decides what happens, and when.
    """

    def __init__(self, shared: Path, seed: int) -> None:
        self.shared = shared
        self.random = Random(seed)
        self.story: list[str] = []
        self.manager = self._manager()
        self._workers = [self._worker(number) for number in range(2)]

    def submit(self, *spec: str) -> subprocess.Popen[str]:
        """Submit an experiment and watch it; returns once it is accepted."""
        words = ["submit", "--manager", self._told, "--watch", *spec]
        client = subprocess.Popen(
            [*COMMAND, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=QUIET,
        )
        assert client.stdout is not None
        assert client.stdout.readline().startswith("experiment-")
        return client

    def happen(self) -> None:
        """Let one thing happen."""
        chosen = self.random.choice(
            [
                self.kill_manager,
                self.kill_manager,
                self.kill_worker,
                self.freeze_worker,
                self.damage,
            ]
        )
        self.story.append(chosen.__name__)
        chosen()

    def kill_manager(self) -> None:
        """The manager dies; another takes its place at the same address."""
        self.manager.kill()
        self.manager = self._manager(self._told.rpartition(":")[2])

    def hand_over(self) -> None:
        """A successor waits at another address while the manager dies."""
        waiting = Process("manager", "--shared", str(self.shared), "--port", "0", "--successor")
        waiting.says("waiting for the manager in office")
        self.manager.kill()
        waiting.says("^manager at ")
        self.manager = waiting

    def kill_worker(self) -> None:
        """A worker dies; another comes in its place."""
        number = self.random.randrange(len(self._workers))
        self._workers[number].kill()
        self._workers[number] = self._worker(number)

    def freeze_worker(self) -> None:
        """A worker stands still until the next thing happens."""
        worker = self.random.choice(self._workers)
        worker.signal(signal.SIGSTOP)
        Thread(target=self._thaw, args=(worker, self.random.uniform(0.5, 3.0))).start()

    def damage(self) -> None:
        """An update that waits to be aggregated is altered."""
        for path in sorted(self.shared.glob("experiments/*/update-*")):
            with suppress(OSError), path.open("r+b") as file:
                file.seek(self.random.randrange(path.stat().st_size))
                file.write(b"\xff")
                return

    def close(self) -> None:
        """End everything."""
        for process in (*self._workers, self.manager):
            process.signal(signal.SIGCONT)
            process.kill()

    def _thaw(self, worker: Process, seconds: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            worker.popen.wait(seconds)
        worker.signal(signal.SIGCONT)

    def _manager(self, port: str = "0") -> Process:
        manager = Process("manager", "--shared", str(self.shared), "--port", port)
        self._told = manager.says(r"^manager at (\S+),")[1]
        return manager

    def _worker(self, number: int) -> Process:
        words = "--shared", str(self.shared), "--manager", self._told
        worker = Process("worker", *words, "--name", f"worker-{number}")
        worker.says("^worker at ")
        return worker


def happen_until_done(stage: Stage, client: subprocess.Popen[str], times: int) -> str:
    """Let things happen at odd moments, then nothing more; returns what the client said."""
    begun = monotonic()
    for _ in range(times):
        with suppress(subprocess.TimeoutExpired):
            client.wait(stage.random.uniform(0.2, 2.0))
            break
        stage.happen()
    said, _ = client.communicate(timeout=PATIENCE_SECONDS - (monotonic() - begun))
    return said


@pytest.fixture
def stage(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stage]:
    """A stage whose seed is the test's parameter."""
    made = Stage(tmp_path, request.param)
    yield made
    made.close()
