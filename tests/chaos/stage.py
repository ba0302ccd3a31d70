"""Real processes on a stage, and what is done to them."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from random import Random
from threading import Thread, Timer
from time import monotonic
from typing import IO, Any, ClassVar

from downpour import Client, Result, Spec
from downpour.base.states import BLAMELESS
from downpour.record.record import read_record
from downpour.record.record_lines import AttemptFailedLine
from tests.chaos.forked import QUIET, Forked
from tests.chaos.line import Line, free_port

PATIENCE_SECONDS = 240.0
COMMAND = [sys.executable, "-m", "downpour"]
FLAGS = "--shards", "4", "--epochs", "24", "--meet", "1", "--seed", "3"
LONGER_THAN_LOST_SECONDS = 13.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """Something that was done on purpose: what, to whom, and when by this process's clock."""

    what: str
    who: str
    at_seconds: float


class Process:
    """A command that serves, with some environment; everything that it says is heard.

    It is forked, unless `imports`: a script that measures how long it takes until a killed process
    is replaced must count its imports.
    """

    imports: ClassVar[bool] = False

    def __init__(self, *words: str, **variables: str) -> None:
        self.words = words
        self.said: list[str] = []
        self.said_seconds: list[float] = []  # when each line was heard, by this process's clock
        self._lines = SimpleQueue[str]()
        ear, mouth = os.pipe()
        try:
            self.popen = self._started(words, {**os.environ, **QUIET, **variables}, mouth)
        finally:
            os.close(mouth)
        self._listener = Thread(target=self._listen, args=(open(ear),))  # noqa: SIM115
        self._listener.start()

    def _started(
        self, words: Sequence[str], environment: Mapping[str, str], mouth: int
    ) -> Forked | subprocess.Popen[bytes]:
        if self.imports:
            return subprocess.Popen([*COMMAND, *words], stderr=mouth, env=environment)
        return Forked(words, environment, files={2: mouth})

    def says(self, pattern: str) -> re.Match[str]:
        """Wait until it says something; raises EOFError where it ends before."""
        while line := self._lines.get(timeout=PATIENCE_SECONDS):
            if found := re.search(pattern, line):
                return found
        raise EOFError("".join(self.said) or "it ended without a word")

    def _listen(self, pipe: IO[str]) -> None:
        with pipe:
            for line in pipe:
                self.said_seconds.append(monotonic())
                self.said.append(line)
                self._lines.put(line)
        self._lines.put("")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it is there."""
        with suppress(ProcessLookupError):
            self.popen.send_signal(number)

    def kill(self) -> None:
        """End it without a warning."""
        self.signal(signal.SIGKILL)
        self.popen.wait()
        self._listener.join()


class Cluster:
    """A manager and workers, each a process."""

    def __init__(self, shared: Path, stack: ExitStack, workers: int = 2) -> None:
        self.shared, self._stack = shared, stack
        self.address = self._start("manager", "--port", "0").says(r"^manager at (\S+),")[1]
        words = "worker", "--manager", self.address, "--name"
        self.workers = [
            self._start(*words, f"worker-{n}", "--notice", str(self.notice(n)))
            for n in range(workers)
        ]
        for worker in self.workers:
            worker.says("^worker at ")

    def notice(self, number: int) -> Path:
        """Return the file that tells a worker that its machine will be taken."""
        return self.shared / f"notice-{number}"

    def run(self, spec: Spec) -> Result:
        """Run an experiment to its end."""
        with Client(self.address, shared=self.shared) as client:
            return client.wait(client.submit(spec))

    def _start(self, kind: str, *words: str) -> Process:
        process = Process(kind, "--shared", str(self.shared), *words)
        self._stack.callback(process.kill)
        return process


class Station:
    """A worker, and the lines between it and the manager: one for each side's calls."""

    def __init__(self, shared: Path, number: int, told: str) -> None:
        self.name = f"worker-{number}"
        host, _, port = told.rpartition(":")
        self.calls_out = Line(host, int(port))
        self._port = free_port()
        self.calls_in = Line("127.0.0.1", self._port)
        self._shared = shared
        self.process = self._start()

    @property
    def lines(self) -> tuple[Line, Line]:
        return self.calls_out, self.calls_in

    def kill(self) -> None:
        """The worker dies; another comes in its place."""
        self.process.kill()
        self.process = self._start()

    def close(self) -> None:
        self.process.signal(signal.SIGCONT)
        self.process.kill()
        for line in self.lines:
            line.close()

    def _start(self) -> Process:
        """Start a worker again and again, as a supervisor does: its line may be cut just now."""
        begun = monotonic()
        while True:
            try:
                return self._start_once()
            except EOFError:
                if monotonic() - begun > PATIENCE_SECONDS:
                    raise

    def _start_once(self) -> Process:
        words = ["--shared", str(self._shared), "--name", self.name, "--port", str(self._port)]
        words += ["--manager", f"127.0.0.1:{self.calls_out.port}"]
        worker = Process("worker", *words, "--advertise", f"127.0.0.1:{self.calls_in.port}")
        worker.says("^worker at ")
        return worker


class Stage:
    """A manager, workers, and a client that waits for the end.

    Processes die at once, stand still, and cannot hear each other; files that others have written
    read wrong, or end too early.

    Args:
        shared: the shared directory.
        seed: decides what happens, and when.
        workers: how many there are.
        flags: the experiment that `begin` submits.
    """

    happens: Sequence[str] = (
        *["kill_manager"] * 2,
        *("kill_manager_at_its_journal", "kill_worker", "freeze_worker"),
        *["cut_off"] * 2,
        *("damage_update", "damage_model"),
    )

    def __init__(
        self, shared: Path, seed: int, workers: int = 2, flags: Sequence[str] = FLAGS
    ) -> None:
        self.shared = shared
        self.flags = flags
        self.random = Random(seed)
        self.story: list[Happening] = []
        self._endings: list[Timer] = []
        self.manager = self._manager()
        self.stations = [Station(shared, number, self._told) for number in range(workers)]

    def submit(self, *spec: str) -> subprocess.Popen[str]:
        """Submit an experiment and watch it; returns once it is accepted."""
        words = ["submit", "--manager", self._told, "--watch", *spec]
        client = subprocess.Popen(
            [*COMMAND, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **QUIET},
        )
        assert client.stdout is not None
        assert client.stdout.readline().startswith("experiment-")
        return client

    def begin(self) -> subprocess.Popen[str]:
        return self.submit(*self.flags)

    def wrong(self, expected: Any) -> str:
        """Say what is not as it should be, now that all has ended."""
        if model_in(self.shared) != expected:
            return "another model"
        if any(one.who != "manager" for one in self.story):
            return ""
        [record] = self.shared.glob("experiments/*/record.jsonl")
        failed = [line for _, line in read_record(record) if isinstance(line, AttemptFailedLine)]
        burned = [line for line in failed if line.failure not in BLAMELESS]
        return f"managers that died cost retries: {burned}" if burned else ""

    def happen(self) -> None:
        getattr(self, self.random.choice(self.happens))()

    def kill_manager(self) -> None:
        """The manager dies; another instead at the same address."""
        self._note("kill_manager", "manager")
        self.manager.kill()
        self.manager = self._manager(self._told.rpartition(":")[2])

    def kill_manager_at_its_journal(self) -> None:
        """The manager dies while it writes: half of its last line is in the journal."""
        self._note("kill_manager_at_its_journal", "manager")
        self.manager.kill()
        for journal in sorted(self.shared.glob("experiments/*/journal-*"))[-1:]:
            last = journal.read_bytes().splitlines()[-1:]
            with journal.open("ab") as file:
                file.writelines(line[: len(line) // 2] for line in last)
        self.manager = self._manager(self._told.rpartition(":")[2])

    def hand_over(self) -> None:
        """A successor waits at another address while the manager dies."""
        waiting = Process("manager", "--shared", str(self.shared), "--port", "0", "--successor")
        waiting.says("waiting for the leading manager")
        self._note("hand_over", "manager")
        self.manager.kill()
        waiting.says("^manager at ")
        self.manager = waiting

    def kill_worker(self) -> None:
        """A worker dies; another comes in its place."""
        station = self.random.choice(self.stations)
        self._note("kill_worker", station.name)
        station.kill()

    def freeze_worker(self) -> None:
        """A worker stands still for a while."""
        station, seconds = self.random.choice(self.stations), self.random.uniform(0.5, 3.0)
        worker = station.process
        self._note(f"freeze_worker for {seconds:.1f} s", station.name)
        worker.signal(signal.SIGSTOP)
        self._later(seconds, lambda: worker.signal(signal.SIGCONT))

    def cut_off(self) -> None:
        """A worker and the manager do not hear each other for a while, or one not the other.

        What they say is held back, or their connections break; sometimes for so long that the
        worker is given up.
        """
        station = self.random.choice(self.stations)
        lines = self.random.choice([station.lines, station.lines[:1], station.lines[1:]])
        seconds = self.random.choice([self.random.uniform(0.5, 3.0), LONGER_THAN_LOST_SECONDS])
        how = self.random.choice([Line.hold, Line.snap])
        which = "".join(str(station.lines.index(line)) for line in lines)
        self._note(f"cut_off: {how.__name__} {which} for {seconds:.1f} s", station.name)
        for line in lines:
            how(line)
            self._later(seconds, line.mend)

    def damage_update(self) -> None:
        """An update that waits to be aggregated is altered."""
        for path in sorted(self.shared.glob("experiments/*/update-*")):
            with suppress(OSError), path.open("r+b") as file:
                file.seek(self.random.randrange(path.stat().st_size))
                file.write(b"\xff")
                self._note("damage_update", path.name)
                return

    def damage_model(self) -> None:
        """The latest model reads wrong for a moment, as a page that a file system has kept."""
        where, seconds = self.random.random(), self.random.uniform(0.2, 1.5)
        for path in sorted(self.shared.glob("experiments/*/model-*"))[-1:]:
            with suppress(OSError):
                content = bytearray(path.read_bytes())
                content[int(where * len(content))] ^= 0xFF
                right, wrong = self.shared / f"right-{path.name}", self.shared / "wrong"
                wrong.write_bytes(content)
                right.hardlink_to(path)
                wrong.rename(path)
                self._note(f"damage_model for {seconds:.1f} s", path.name)
                self._later(seconds, partial(_put_back, right, path))

    def close(self) -> None:
        for ending in self._endings:
            ending.cancel()
            ending.join()
        for station in self.stations:
            station.close()
        self.manager.kill()

    def _note(self, what: str, who: str) -> None:
        self.story.append(Happening(what=what, who=who, at_seconds=monotonic()))

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        timer = Timer(seconds, act)
        timer.start()
        self._endings.append(timer)

    def _manager(self, port: str = "0") -> Process:
        manager = Process("manager", "--shared", str(self.shared), "--port", port)
        self._told = manager.says(r"^manager at (\S+),")[1]
        return manager


def _put_back(right: Path, path: Path) -> None:
    """Undo damage, unless the file was removed meanwhile."""
    if path.exists():
        right.rename(path)
    else:
        right.unlink()


def model_in(shared: Path) -> bytes:
    """Return the model of the one experiment in a shared directory."""
    [model] = shared.glob("experiments/*/model.safetensors")
    return model.read_bytes()


def played(stage: Stage, times: int, expected: Any) -> str:
    """Let things happen at odd moments, then nothing more; say what is wrong in the end."""
    client, begun = stage.begin(), monotonic()
    for _ in range(times):
        with suppress(subprocess.TimeoutExpired):
            client.wait(stage.random.uniform(0.2, 2.0))
            break
        stage.happen()
    said, _ = client.communicate(timeout=PATIENCE_SECONDS - (monotonic() - begun))
    if client.returncode:
        return f"ended with {client.returncode}: {said}"
    return stage.wrong(expected) if stage.story else "it ended before anything happened"
