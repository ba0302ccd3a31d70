"""What stays behind of `downpour run`, however it ends: nothing.

`python -m tests.cluster.launchers.leftovers` prints a table; docs/how-to/launchers.md sums it up.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path

import psutil
import pytest

from downpour.base.errors import StoreError
from downpour.record.record import read_record
from downpour.record.record_lines import KINDS
from tests.cluster.docker.conftest import ROOT, compose_command, engine, image  # noqa: F401 - fixtures
from tests.cluster.ray_cluster.conftest import lasting_nodes, nodes  # noqa: F401 - fixtures
from tests.cluster.slurm.conftest import slurm  # noqa: F401 - a fixture
from tests.cluster.ssh.conftest import ssh  # noqa: F401 - a fixture
from tests.cluster.ssh.lab import HOSTS

LEASE_SECONDS = 75.0
"""A minute, and what an engine takes to notice."""
START_SECONDS = 240.0
_LOOK_SECONDS = 0.2
ROUNDS = 100
"""Updates after which a run has gone on; more than can be under way while an engine restarts."""
ENDINGS = ("success", "killed worker", "restarted engine", "Ctrl-C", "SIGTERM", "SIGHUP", "SIGKILL")
_SIGNALS = {
    "Ctrl-C": signal.SIGINT,
    "SIGTERM": signal.SIGTERM,
    "SIGHUP": signal.SIGHUP,
    "SIGKILL": signal.SIGKILL,
}
_STATUSES = {
    "success": 0,
    "killed worker": 130,
    "restarted engine": 130,
    "Ctrl-C": 130,
    "SIGTERM": 143,
    "SIGHUP": 129,
    "SIGKILL": -signal.SIGKILL,
}


@dataclass(frozen=True, slots=True)
class Left:
    """What is there: each by the names that tell one from another."""

    processes: frozenset[int]
    jobs: frozenset[str]
    containers: frozenset[str]
    networks: frozenset[str]
    volumes: frozenset[str]
    files: frozenset[str]
    sockets: frozenset[str]

    def without(self, before: Left) -> dict[str, list[object]]:
        """Return what is there now and was not before, by kind."""
        kinds = [kind.name for kind in fields(self)]
        return {kind: sorted(getattr(self, kind) - getattr(before, kind)) for kind in kinds}


@dataclass
class Place:
    """The words of a command, the folders to look into, and how to `restart` its engine."""

    words: Sequence[str]
    folder: Path
    engines: Sequence[str] = ()
    restart: Callable[[], None] | None = None
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def shared(self) -> Path:
        return self.folder / "shared"

    def run(self, epochs: int) -> subprocess.Popen[str]:
        here = self.folder / "here"
        here.mkdir(exist_ok=True)
        words = ["run", "--shards", "2", "--workers", "2", "--shared", str(self.shared)]
        process = subprocess.Popen(
            [sys.executable, "-m", "downpour", *words, "--epochs", str(epochs), *self.words],
            cwd=here,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            preexec_fn=_hear_signals,  # noqa: PLW1509 - no threads here yet
        )
        self.started.append(process)
        return process

    def seen(self) -> Left:
        by_docker, by_slurm = "docker" in self.engines, "slurm" in self.engines
        return Left(
            processes=frozenset(self._processes()),
            jobs=frozenset(_lines("squeue", "--noheader", "--format=%A") if by_slurm else ()),
            containers=frozenset(_lines("docker", "ps", "--all", "--quiet") if by_docker else ()),
            networks=frozenset(_lines("docker", "network", "ls", "--quiet") if by_docker else ()),
            volumes=frozenset(_lines("docker", "volume", "ls", "--quiet") if by_docker else ()),
            files=frozenset(p.name for p in (self.folder / "here").glob("*")),
            sockets=frozenset(self._sockets()),
        )

    def _sockets(self) -> Iterator[str]:
        """Find the ports that the command's processes listen on, and sockets among the files."""
        for pid in self._processes():
            with suppress(psutil.Error):
                found = psutil.Process(pid).net_connections()
                yield from (str(one.laddr) for one in found if one.status == psutil.CONN_LISTEN)
        for folder, _, names in os.walk(self.folder):
            yield from (name for name in names if Path(folder, name).is_socket())

    def _processes(self) -> Iterator[int]:
        """Find the processes that the command has started, by their words or working directory.

        Those in containers have neither; the containers are counted.
        """
        own = {one.pid for one in self.started}
        for process in psutil.process_iter(["cmdline", "cwd", "status"]):
            about = process.info
            known = " ".join([*(about["cmdline"] or ()), about["cwd"] or ""])
            alive = about["status"] != psutil.STATUS_ZOMBIE
            if str(self.folder) in known and process.pid not in own and alive:
                yield process.pid


MOMENTS: dict[str, Callable[[Place], bool]] = {
    "imports": lambda place: _imports(place.started[-1]),
    "directory": lambda place: place.shared.is_dir(),
    "experiment": lambda place: any(place.shared.glob("experiments/*")),
    "assignment": lambda place: _recorded(place.shared, "assigned"),
    "update": lambda place: _recorded(place.shared, "updated"),
}
"""How far a command has come when it is ended.

Before its first line, for 20 ms, Python itself answers a Ctrl-C: with a traceback, or not at all.
"""


def leftovers_at(place: Place, number: signal.Signals, moment: str) -> dict[str, list[object]]:
    """Send the command a signal at a moment, and return what stays longer than the lease."""
    before = place.seen()
    process = place.run(epochs=100_000)
    _until(lambda: MOMENTS[moment](place), process)
    process.send_signal(number)
    _, said = process.communicate(timeout=START_SECONDS)
    # A shell shows both as the same status; while the command is imported, the signal ends it.
    assert process.returncode in {128 + number, -number}, said
    assert "Traceback" not in said
    return _what_stays(place, before, LEASE_SECONDS if number == signal.SIGKILL else 5.0)


def leftovers(place: Place, ending: str) -> dict[str, list[object]]:
    """Run the command, end it, and return what stays longer than the lease, by kind."""
    before = place.seen()
    process = place.run(epochs=1 if ending == "success" else 100_000)
    expected = _STATUSES[ending]
    if ending != "success":
        _until(lambda: _trains(place.shared), process)
    if ending == "killed worker":
        _kill_worker(place)
    if ending == "restarted engine" and not _goes_on(place, process):
        expected = 1
    if ending != "success":
        process.send_signal(_SIGNALS.get(ending, signal.SIGINT))
    _, said = process.communicate(timeout=START_SECONDS)
    assert process.returncode == expected, said
    assert not any(word in said for word in ("Traceback", "StackTrace", "internal error")), said
    return _what_stays(place, before, LEASE_SECONDS if expected in {1, -9} else 5.0)


def _goes_on(place: Place, process: subprocess.Popen[str]) -> bool:
    """Restart the engine; return whether the run goes on, instead of ending by itself."""
    assert place.restart is not None
    place.restart()
    done, deadline = _count(place.shared, "updated"), time.monotonic() + START_SECONDS
    while process.poll() is None and _count(place.shared, "updated") < done + ROUNDS:
        assert time.monotonic() < deadline, "it neither went on nor ended"
        time.sleep(_LOOK_SECONDS)
    return process.poll() is None


def _what_stays(place: Place, before: Left, seconds: float) -> dict[str, list[object]]:
    deadline = time.monotonic() + seconds
    while any((left := place.seen().without(before)).values()) and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
    return left


def _hear_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _until(holds: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not holds():
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        assert time.monotonic() < deadline, "it never trained"
        time.sleep(_LOOK_SECONDS)


def _imports(process: subprocess.Popen[str]) -> bool:
    """Whether a command has loaded the first compiled library that it imports."""
    with suppress(psutil.Error):
        return any("site-packages" in one.path for one in psutil.Process(process.pid).memory_maps())
    return False


def _trains(shared: Path) -> bool:
    return _recorded(shared, "updated")


def _recorded(shared: Path, kind: str) -> bool:
    return _count(shared, kind) > 0


def _count(shared: Path, kind: str) -> int:
    """Count the lines of a kind in the records of all experiments."""
    found = 0
    for folder in shared.glob("experiments/*"):
        with suppress(StoreError):
            lines = read_record(folder / "record.jsonl")
            found += sum(isinstance(line, KINDS[kind]) for _, line in lines)
    return found


def _kill_worker(place: Place) -> None:
    """Kill the process of worker-1, wherever it runs on this machine."""
    in_containers = "docker" in place.engines
    for process in psutil.process_iter(["cmdline", "cwd"]):
        words = process.info["cmdline"] or []
        known = str(place.folder) in " ".join([*words, process.info["cwd"] or ""])
        ours = _is_in_container(process.pid) if in_containers else known
        if ours and ("downpour: worker-1" in words[:1] or {"worker", "worker-1"} <= set(words)):
            with suppress(psutil.NoSuchProcess):
                process.kill()


def _is_in_container(pid: int) -> bool:
    """Whether a process counts its processes apart from ours; by its folder it can't be told."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/ns/pid").readlink() != Path("/proc/self/ns/pid").readlink()
    return False


def _lines(*words: str) -> list[str]:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()


_NO_ENGINE = {
    "inline": "inline has no engine: its workers are threads of the command",
    "compose": "the engine of containers runs those of others, too; a killed worker is a container",
}
_LONG = [pytest.mark.slow, pytest.mark.timeout(900)]
NAMES = [
    pytest.param(name, marks=_LONG)
    for name in ("local", "inline", "ssh", "compose", "slurm", "ray")
]


@pytest.fixture(params=NAMES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Each launcher's words."""
    words: dict[str, Callable[[], Place]] = {
        "local": lambda: _by_fork_server(tmp_path),
        "inline": lambda: Place(("--on", "inline"), tmp_path),
        "ssh": lambda: _by_ssh(request, tmp_path),
        "compose": lambda: _by_compose(request, tmp_path),
        "slurm": lambda: _by_slurm(request, tmp_path),
        "ray": lambda: _by_ray(request, tmp_path),
    }
    made = words[request.param]()
    yield made
    _close(made)


def _close(made: Place) -> None:
    for process in made.started:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()
    shutil.rmtree(made.shared, ignore_errors=True)


def _by_fork_server(folder: Path) -> Place:
    made = Place((), folder)
    made.restart = lambda: _kill_fork_server(made.started[-1].pid)
    return made


def _kill_fork_server(command: int) -> None:
    """Kill what local starts everything by; the run itself starts another one."""
    children = psutil.Process(command).children()
    [server] = [one for one in children if "fork server" in one.cmdline()[0]]
    server.kill()


def _by_ssh(request: pytest.FixtureRequest, folder: Path) -> Place:
    lab = request.getfixturevalue("ssh")
    words = "--on", "ssh", "--hosts", str(lab.hosts(*HOSTS)), "--ssh-config", str(lab.config)
    return Place(words, folder, restart=lab.restart)


def _by_compose(request: pytest.FixtureRequest, folder: Path) -> Place:
    request.getfixturevalue("compose_command")
    file, built = str(ROOT / "docker/compose.yaml"), request.getfixturevalue("image")
    words = "--on", "compose", "--compose-file", file, "--image", built
    return Place(words, folder, ("docker",))


def _by_slurm(request: pytest.FixtureRequest, folder: Path) -> Place:
    lab = request.getfixturevalue("slurm")
    words = "--on", "slurm", "--partition", "all", "--time", "5"
    return Place(words, folder, ("slurm",), restart=lab.restart_controller)


def _by_ray(request: pytest.FixtureRequest, folder: Path) -> Place:
    restarts = request.node.callspec.params["ending"] == "restarted engine"
    nodes = request.getfixturevalue("nodes" if restarts else "lasting_nodes")  # noqa: F811
    words = "--on", "ray", "--ray-address", nodes.address
    return Place(words, folder, restart=nodes.restart_head)


@pytest.mark.parametrize("ending", ENDINGS)
def test_nothing_stays_behind(
    place: Place, ending: str, record_property: Callable[[str, object], None]
) -> None:
    """No process, job, container, network, volume, file or socket, a minute after a `kill -9`.

    An engine that is killed and started again takes nothing from the run, or the run ends in one
    line.
    """
    name = place.words[1] if place.words else "local"
    if ending == "restarted engine" and place.restart is None:
        pytest.skip(_NO_ENGINE[name])
    left = leftovers(place, ending)
    record_property("left", (name, ending, sum(map(len, left.values()))))
    assert not any(left.values()), left


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("name", _SIGNALS)
def test_nothing_stays_behind_at_any_moment(tmp_path: Path, name: str, moment: str) -> None:
    """However far the command has come: while it starts, prepares, assigns or trains."""
    made = Place((), tmp_path)
    try:
        assert not any(leftovers_at(made, _SIGNALS[name], moment).values())
    finally:
        _close(made)
