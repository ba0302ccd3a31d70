"""A cluster on the hosts of a lab, two managers and two workers, started again when they end."""

import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from time import monotonic

import psutil

from tests.chaos.bucket_copy import __file__ as _copying
from tests.chaos.cuts import CLIENT, MANAGERS, WORKERS, Acting, Schedule, Trouble
from tests.chaos.history import History, read_history, unpack_journals
from tests.chaos.skewed import skewed
from tests.lab.failing import NoLab
from tests.lab.hosts import HostProcess
from tests.lab.lab import Lab, Shared

ROOT = Path(__file__).parents[2]
_PATIENCE = "0.5"
_LOOK_SECONDS = 0.05
_CLOSE_SECONDS = 15.0


@dataclass(slots=True)
class _Place:
    """A host, what runs there, and how often it was started."""

    words: list[str]
    process: HostProcess
    log: Path
    starts: int = 1


class Field:
    """The cluster, from `begin` to `close`.

    Args:
        lab: the hosts.
        shared: what they share.
        schedule: whose clocks are wrong.
        command: what is run instead of `downpour`: planted defects.
        wait_seconds: how long anything may take.
    """

    def __init__(
        self,
        lab: Lab,
        shared: Shared,
        schedule: Schedule,
        command: tuple[str, ...] = (),
        wait_seconds: float = 120.0,
    ) -> None:
        self.lab = lab
        self._shared = shared
        self._schedule, self._wait_seconds = schedule, wait_seconds
        self._command = [sys.executable, "-m", *(command or ("downpour",))]
        self._places: dict[str, _Place] = {}
        self._pause = Event()
        self.experiment = ""
        token = lab.path / "token"
        where = str(lab.folder if shared == "folder" else lab.url)
        self._where = ["--shared", where, "--token-file", str(token)]
        self.files = lab.export if shared == "folder" else lab.path / "copy"

    def begin(self) -> None:
        """Start all; a manager leads and workers come when this returns."""
        if self._shared == "objects":
            self.files.mkdir()
            self.lab["store"].start(*self._copying(), cwd=ROOT, environment=self._s3)
        self._start(MANAGERS[0], "manager", ["--make-token"])
        self._until("a manager leads", lambda: self.leader != "")
        self._start(MANAGERS[1], "manager", ["--successor"])
        for name in WORKERS:
            self._start(name, "worker", [])

    def submit(self, *spec: str) -> None:
        """Submit an experiment from a host whose link nothing happens to."""
        words = [*self._command[:2], "downpour", "submit", *spec, *self._where]
        said = self.lab[CLIENT].run(*words, cwd=ROOT)
        self.experiment = said.splitlines()[0].split()[0]

    @property
    def leader(self) -> str:
        """The host of the newest term's manager; empty if there is none yet."""
        terms = self.files / "terms"
        # Others are hidden names, of terms that are being claimed.
        found = sorted(terms.glob("[0-9]*")) if terms.is_dir() else []
        names = [name for name in MANAGERS if found and f'"{name}"' in found[-1].read_text()]
        return names[0] if names else ""

    @property
    def folder(self) -> Path:
        """The experiment's folder."""
        return self.files / "experiments" / self.experiment

    @property
    def history(self) -> History:
        """What the journal says by now."""
        if self._shared == "objects":
            with suppress(FileNotFoundError):  # removed while it was read
                unpack_journals(self.files)
        if not self.folder.is_dir():
            return History(counting=(), void=(), damaged=())
        return read_history(self.folder)

    @property
    def versions(self) -> int:
        """How many versions count by now."""
        return len(self.history.of("aggregated"))

    @property
    def has_ended(self) -> bool:
        """Whether the experiment has."""
        return bool(self.history.of("concluded"))

    def suffer(self, trouble: Trouble) -> float:
        """Let something happen and heal; returns the seconds from healing to the next version."""
        self.endure(trouble)
        had, healed = self.versions, monotonic()
        self._until("work goes on", lambda: self.versions > had or self.has_ended)
        return monotonic() - healed

    def endure(self, trouble: Trouble) -> None:
        """Let something happen and heal."""
        acting, begun = Acting(self.lab, trouble, self.leader), monotonic()
        acting.begin()
        try:
            while (passed := monotonic() - begun) < trouble.seconds:
                acting.look(passed)
                self.look()
        finally:
            acting.end()

    def kill(self, name: str) -> None:
        """Kill what runs on a host; `look` starts it again."""
        with suppress(psutil.NoSuchProcess):
            _inner(self._places[name].process).kill()

    def until_version(self, number: int) -> None:
        """Wait until there are so many versions."""
        self._until(f"version {number}", lambda: self.versions >= number or self.has_ended)

    def until_end(self) -> None:
        """Wait until the experiment has ended."""
        self._until("the experiment ends", lambda: self.has_ended)

    def look(self) -> None:
        """Start again what has ended, as a supervisor does, and let a moment pass."""
        for name, place in self._places.items():
            if place.process.poll() is not None:
                words = [word for word in place.words if word != "--make-token"]
                if "manager" in words and "--successor" not in words:
                    words.append("--successor")
                place.words, place.starts = words, place.starts + 1
                place.process = self._run(name, words, place.log)
        self._pause.wait(_LOOK_SECONDS)

    @property
    def starts(self) -> int:
        """How many processes were started again."""
        return sum(place.starts - 1 for place in self._places.values())

    def close(self) -> None:
        """End all, as people do; what was to be written is."""
        running = [_inner(place.process) for place in self._places.values()]
        for process in running:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGTERM)
        _, late = psutil.wait_procs(running, timeout=_CLOSE_SECONDS)
        for process in late:
            process.kill()
        if self._shared == "objects":
            self.lab["store"].run(*self._copying(), "--once", cwd=ROOT, environment=self._s3)

    def keep(self, folder: Path) -> None:
        """Copy the shared files, and all that processes have said."""
        shutil.copytree(self.files, folder, ignore=shutil.ignore_patterns(".glusterfs"))
        if self._shared == "objects":
            unpack_journals(folder)
        for name, place in self._places.items():
            shutil.copy(place.log, folder / f"{name}.log")

    @property
    def _s3(self) -> dict[str, str]:
        return self.lab[CLIENT].environment

    def _copying(self) -> list[str]:
        return [sys.executable, _copying, self.lab.url, str(self.files)]

    def _until(self, what: str, is_so: Callable[[], bool]) -> None:
        begun = monotonic()
        while not is_so():
            if monotonic() - begun > self._wait_seconds:
                raise NoLab(f"after {self._wait_seconds:.0f} s still not: {what}")
            self.look()

    def _start(self, name: str, kind: str, more: list[str]) -> None:
        words = [kind, *self._where, *more]
        if kind == "manager":
            words += ["--host", self.lab[name].address, "--patience", _PATIENCE]
        log = self.lab.path / f"{name}.log"
        self._places[name] = _Place(words, self._run(name, words, log), log)

    def _run(self, name: str, words: list[str], log: Path) -> HostProcess:
        environment = {"OMP_NUM_THREADS": "1"}
        if name in self._schedule.skewed:
            environment |= skewed(self.lab.path, self._schedule.skewed[name])
        with log.open("a") as file:
            host, command = self.lab[name], [*self._command, *words]
            return host.start(*command, cwd=ROOT, environment=environment, output=file, errors=file)


def _inner(process: HostProcess) -> psutil.Process:
    """Return what runs on the host: what entered it would end alone, and leave that running."""
    found = psutil.Process(process.pid)
    while children := found.children():
        found = children[0]
    return found
