"""`downpour manager` and `downpour worker`: what they refuse, and how they end."""

import ctypes
import platform
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from downpour import __version__
from downpour.base.names import AUTO, DEVICE_NAMES
from downpour.learning.auto import devices_for
from downpour.network.rpc import PROTOCOL, serve_manager
from downpour.network.rpc.messages import ManagerInfo, ManagerService

Refused = Callable[..., str]
COMMAND = [sys.executable, "-m", "downpour"]
PATIENCE_SECONDS = 60
_TGKILL = {"x86_64": 234, "aarch64": 131}
"""Linux's number of the call that signals one thread of another process; Python has none for it."""


class Stranger(ManagerService):
    """A manager that says who it is and nothing more."""

    def __init__(self, protocol: int) -> None:
        self._protocol = protocol

    def describe(self) -> ManagerInfo:
        """Name a protocol, and a presence file that is nowhere."""
        return ManagerInfo(
            protocol=self._protocol,
            version="9.9.9",
            presence_file="manager-000000000000",
            heartbeat_seconds=1.0,
        )


@contextmanager
def stranger(protocol: int = PROTOCOL) -> Iterator[str]:
    """Serve such a manager; gives its address."""
    server = serve_manager(Stranger(protocol), "127.0.0.1", 0).start()  # type: ignore[abstract]
    yield str(server.address)
    server.stop()


@pytest.mark.parametrize("command", ["manager", "worker"])
def test_a_port_in_use_is_named(refused: Refused, tmp_path: Path, command: str) -> None:
    """And one that is no port."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        manager = ["--manager", "localhost:1"] if command == "worker" else []
        line = refused(command, "--port", port, "--shared", tmp_path, *manager)
    assert line == f"port = {port}: is in use on 127.0.0.1; 0 picks a free one"
    assert refused(command, "--port", 99999, "--shared", tmp_path).startswith("port = 99999: ")


def test_a_worker_never_makes_the_shared_directory(refused: Refused, tmp_path: Path) -> None:
    """A folder that is not there is a mistake in its path."""
    nowhere = tmp_path / "nowhere"
    line = refused("worker", "--shared", nowhere, "--connect-seconds", "0")
    assert line == f"shared directory {nowhere}: no such folder"
    assert not nowhere.exists()


def test_versions_that_do_not_fit_are_named(refused: Refused, tmp_path: Path) -> None:
    """Both of them, and what to do."""
    with stranger(PROTOCOL + 1) as address:
        line = refused("worker", "--manager", address, "--shared", tmp_path)
    assert f"downpour 9.9.9 (protocol {PROTOCOL + 1})" in line
    assert f"{__version__} (protocol {PROTOCOL})" in line
    assert line.endswith("install the same version on both")


def test_devices_are_those_of_the_spec(downpour: Callable[..., Any]) -> None:
    """The help names them."""
    for command in ("worker", "up", "run"):
        assert DEVICE_NAMES in downpour(command, "--help").out.replace("\n", "")


@contextmanager
def started(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a command that serves; gives the process and its first line but "stood still"."""
    with subprocess.Popen(
        [*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        try:
            said = (line for line in process.stderr if "stood still" not in line)
            yield process, next(said, "")
        finally:
            process.kill()


def until_it_waits(process: subprocess.Popen[str]) -> None:
    """Return once the main thread has slept whenever one looked, a thousand times in a row."""
    status = Path(f"/proc/{process.pid}/task/{process.pid}/stat")
    asleep = 0
    while asleep < 1000:
        asleep = asleep + 1 if status.read_text().rpartition(")")[2].split()[0] == "S" else 0


def interrupted(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Send Ctrl-C; return the status and what else was said."""
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, "".join(said)


@pytest.mark.slow
def test_ctrl_c_ends_a_worker_and_a_manager_in_peace(tmp_path: Path) -> None:
    """Status 0, for that is how they are meant to end; the manager tells who came and left."""
    shared = "--shared", str(tmp_path)
    with started("manager", "--port", "0", *shared) as (manager, greeting):
        found = re.match(r"manager at (\S+), shared directory ", greeting)
        assert found, greeting
        with started("worker", "--manager", found[1], *shared) as (worker, said):
            assert re.match(rf"worker at \S+, manager {found[1]}", said), said
            assert interrupted(worker) == (0, "")
        status, said = interrupted(manager)
        joined, left = said.splitlines()
        assert status == 0
        assert "joined from 127.0.0.1" in joined
        assert left.endswith("left: told to stop")


@pytest.mark.slow
def test_a_cluster_over_ipv6_asks_for_its_token(tmp_path: Path) -> None:
    """Several workers on one host; who holds no token is told so, and the rest go on."""
    shared = "--shared", str(tmp_path)
    token = "--token-file", str(tmp_path / "token")
    with ExitStack() as stack:
        listen = "--host", "::", "--port", "0", "--make-token"
        manager, made = stack.enter_context(started("manager", *listen, *shared))
        assert made == f"made a token: {tmp_path / 'token'}\n"
        assert manager.stderr is not None
        port = manager.stderr.readline().partition("[::]:")[2].partition(",")[0]
        address = f"[::1]:{port}"
        for _ in range(2):
            words = "worker", "--manager", address, *shared, *token
            _, said = stack.enter_context(started(*words))
            assert re.match(r"worker at \[::1\]:\d+, manager ", said), said
        stranger, told = stack.enter_context(started("worker", "--manager", address, *shared))
        assert told.startswith(f"downpour: {address} requires a token: ")
        assert stranger.wait(PATIENCE_SECONDS) == 2
        submit = ["submit", "--manager", address, *token, "--watch", "--epochs", "1"]
        done = subprocess.run([*COMMAND, *submit], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "finished" in done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_a_worker_leaves_at_the_signals_of_engines(tmp_path: Path, number: signal.Signals) -> None:
    """At once, while it still imports; sent twice it says goodbye all the same."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which the worker inherits, also under nohup
    shared = "--shared", str(tmp_path)
    ready = tmp_path / "ready"
    with started("manager", "--port", "0", *shared) as (manager, greeting):
        found = re.match(r"manager at (\S+), shared directory ", greeting)
        assert found, greeting
        with started("worker", *shared, "--ready-file", str(ready)) as (worker, said):
            address = re.match(rf"worker at (\S+), manager {found[1]}", said)
            assert address, said
            assert ready.read_text() == f"{address[1]}\n"
            worker.send_signal(number)
            worker.send_signal(number)
            assert worker.communicate(timeout=PATIENCE_SECONDS) == ("", "")
            assert worker.returncode == 0
            assert not ready.exists()
        status, told = interrupted(manager)
    assert status == 0
    assert told.splitlines()[-1].endswith("left: told to stop")


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() not in _TGKILL, reason="the call's number is not known here")
def test_a_worker_leaves_whichever_thread_takes_the_signal(tmp_path: Path) -> None:
    """After a suspend the kernel may not choose the main thread, where Python runs handlers."""
    shared = "--shared", str(tmp_path)
    with started("manager", "--port", "0", *shared), started("worker", *shared) as (worker, said):
        assert said.startswith("worker at "), said
        until_it_waits(worker)
        others = [int(task.name) for task in Path(f"/proc/{worker.pid}/task").iterdir()]
        others.remove(worker.pid)
        number = _TGKILL[platform.machine()]
        assert ctypes.CDLL(None).syscall(number, worker.pid, min(others), signal.SIGTERM) == 0
        assert worker.wait(PATIENCE_SECONDS) == 0


@pytest.mark.slow
def test_a_worker_finds_the_leader_in_the_folder_and_waits_for_it(tmp_path: Path) -> None:
    """It may be started first, without an address; status 75 says that it may come again."""
    shared = "--shared", str(tmp_path)
    words = [*COMMAND, "worker", *shared, "--connect-seconds", "0"]
    early = subprocess.run(words, capture_output=True, text=True, check=False)
    line = f"downpour: the manager cannot be reached: no manager leads in {tmp_path} yet\n"
    assert (early.returncode, early.stderr) == (75, line)
    with ExitStack() as stack:
        process = subprocess.Popen([*COMMAND, "worker", *shared], stderr=subprocess.PIPE, text=True)
        worker = stack.enter_context(process)
        stack.callback(worker.kill)
        assert worker.stderr is not None
        assert "no manager leads" in worker.stderr.readline()
        manager, first = stack.enter_context(started("manager", "--port", "0", *shared))
        assert manager.stderr is not None
        # The waiting worker may join, which is logged, before the manager says where it serves.
        said = next(line for line in chain([first], manager.stderr) if line.startswith("manager"))
        found = re.match(r"manager at (\S+), shared directory ", said)
        assert found, said
        # And it may find the leader before that serves, and say that it waits for it.
        said = next(line for line in worker.stderr if line.startswith("worker at "))
        device = devices_for(AUTO).chosen(AUTO)
        assert said.endswith(f", manager {found[1]}, trains on {device}\n")
        manager.kill()
