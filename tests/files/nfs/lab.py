"""A real NFS server and machines that mount it: guests in a network namespace of this machine.

`Lab` brings them up with the workspace's tool, on a small file system of its own that tests may
fill, and takes everything down again. A `Guest` runs commands, or Python code in one process that
stays, so that its NFS client keeps what it believes from one request to the next.
"""

from __future__ import annotations

import ctypes
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
TOOL = (ROOT.parent / "shared" / "tools" / "nfslab.sh").resolve()
NAMESPACE = Path("/var/run/netns/nfslab")
MOUNTED = Path("/mnt/shared")
# Longer than a test lets the server stand still: one that has ended its clients' leases takes back
# what they had open, and this one then keeps them waiting for minutes.
LEASE_SECONDS = 20

_CLONE_NEWNET = 0x40000000
_PORT = 7000
_EXPORT_BYTES = 4 * 2**30
_BLOCK_BYTES = 4096
_COVERED = Path("/tmp")  # noqa: S108 - guests have a folder of their own there


def why_not() -> str:
    """Say in a few words why there can be no lab here; empty where there can be one."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "an NFS lab needs root on Linux"
    if not TOOL.is_file():
        return "the tool that makes an NFS lab is not here"
    for program in ("linux.uml", "ganesha.nfsd", "mount.nfs", "ip", "iptables", "mkfs.ext4"):
        if shutil.which(program) is None:
            return f"an NFS lab needs {program}"
    for path in (TOOL, Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()):
        if path.is_relative_to(_COVERED):
            return f"guests of an NFS lab do not see {path}"
    if NAMESPACE.exists():
        return "another NFS lab is up; `nfslab.sh down` ends it"
    return ""


class Guest:
    """A machine that mounts the share at `MOUNTED`, and has this source tree."""

    def __init__(self, number: int, lab: Lab) -> None:
        self.address = f"10.77.0.{10 + number}"
        self.number = number
        self._lab = lab
        self._pool = ThreadPoolExecutor(4, thread_name_prefix=self.address)

    def run(self, *words: object, status: int | None = 0, seconds: float = 90) -> str:
        """Run a command and return its output; `status` is the exit status that it must have."""
        line = shlex.join(str(word) for word in words)
        command = f"cd /tmp; {self._lab.environment} {line} 2>&1"
        got, output, _ = self._request({"cmd": command, "t": seconds}, seconds)
        assert status is None or got == status, f"{line}\n{output}"
        return str(output)

    def downpour(self, *words: object, status: int | None = 0, seconds: float = 90) -> str:
        program = (sys.executable, "-m", "downpour")
        return self.run(*program, *words, status=status, seconds=seconds)

    def start_downpour(self, *words: object) -> Path:
        """Start a command of ours that goes on; return the log of what it says, as seen there."""
        log = _COVERED / f"{words[0]}.log"
        line = shlex.join([sys.executable, "-m", "downpour", *map(str, words)])
        self.run("sh", "-c", f"setsid {line} >{log} </dev/null 2>&1 &")
        return log

    def python(self, code: str, seconds: float = 90) -> Any:
        """Run code in the guest's one Python process, and return what it sets `out` to."""
        status, out, detail = self._request({"py": code}, seconds)
        assert status == 0, f"{out}\n{detail}"
        return out

    def begin(self, code: str, seconds: float = 90) -> Future[Any]:
        """Begin to run code as `python` does."""
        return self._pool.submit(self.python, code, seconds)

    def halt(self) -> None:
        group = int((self._lab.folder / f"g{self.number}.pgid").read_text())
        os.killpg(group, signal.SIGKILL)

    def _request(self, request: dict[str, Any], seconds: float) -> list[Any]:
        with in_namespace(lambda: socket.create_connection((self.address, _PORT), 10)) as line:
            line.settimeout(seconds + 10)
            line.sendall(json.dumps(request).encode() + b"\n")
            with line.makefile("rb") as answers:
                answer = json.loads(answers.readline())
        assert isinstance(answer, list)
        return answer


class Lab:
    """The server and its guests; `folder` holds what the tool needs, `export` is the share."""

    def __init__(self, guests: int) -> None:
        # Not in the usual folder for temporary files, which guests cover with one of their own.
        self.folder = Path(tempfile.mkdtemp(prefix="downpour-nfs-", dir="/var/tmp"))
        self.export = self.folder / "export"
        self.environment = f"PYTHONPATH={self.folder / 'src'} COLUMNS=80"
        self.guests = [Guest(number + 1, self) for number in range(guests)]

    def up(self) -> None:
        """Start everything; a folder on NFS, mounted with the system's default options."""
        self._copy_source()
        image = self.folder / "image"
        with image.open("wb") as file:
            file.truncate(_EXPORT_BYTES)
        self.export.mkdir()
        run("mkfs.ext4", "-q", image)
        run("mount", "-o", "loop", image, self.export)
        said = self._tool("up", str(len(self.guests)), "vers=4.1")
        assert said.count("1 mount(s)") == len(self.guests), said
        setup = f"import sys; sys.path.insert(0, {str(self.folder / 'src')!r})"
        for guest in self.guests:
            guest.python(setup)

    def down(self) -> None:
        self._tool("down")
        subprocess.run(["umount", "--lazy", self.export], check=False, capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextmanager
    def server_paused(self) -> Iterator[None]:
        server = int((self.folder / "ganesha.pid").read_text())
        os.kill(server, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(server, signal.SIGCONT)

    @contextmanager
    def server_away(self) -> Iterator[None]:
        """Break every connection to the server, and let none be made."""
        rule = ["INPUT", "-p", "tcp", "--dport", "2049", "-j", "REJECT"]
        rule += ["--reject-with", "tcp-reset"]
        command = ["ip", "netns", "exec", NAMESPACE.name, "iptables"]
        run(*command, "-I", *rule)
        try:
            yield
        finally:
            run(*command, "-D", *rule)

    @contextmanager
    def disk_full(self) -> Iterator[None]:
        filler = self.export / "filler"
        try:
            with filler.open("wb") as file:
                taken_bytes, piece_bytes = 0, _EXPORT_BYTES
                while piece_bytes >= _BLOCK_BYTES:
                    try:
                        os.posix_fallocate(file.fileno(), taken_bytes, piece_bytes)
                        taken_bytes += piece_bytes
                    except OSError:
                        piece_bytes //= 2
            yield
        finally:
            filler.unlink()

    def _copy_source(self) -> None:
        """Guests see this machine's files, but not the usual place of a temporary checkout."""
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "src" / "downpour", self.folder / "src" / "downpour", ignore=ignored)
        run(sys.executable, "-m", "compileall", "-q", self.folder / "src")

    def _tool(self, *words: str) -> str:
        settings = {
            "LAB": str(self.folder),
            "PYTHON": sys.executable,
            "MEM": "1500M",
            "LEASE": str(LEASE_SECONDS),
        }
        return run("bash", TOOL, *words, environment={**os.environ, **settings})


def in_namespace(connect: Callable[[], socket.socket]) -> socket.socket:
    """Make a socket in the lab's network; it stays there, whoever uses it."""

    def enter_and_connect() -> socket.socket:
        with NAMESPACE.open("rb") as namespace:
            library = ctypes.CDLL(None, use_errno=True)
            assert library.setns(namespace.fileno(), _CLONE_NEWNET) == 0, ctypes.get_errno()
        return connect()

    with ThreadPoolExecutor(1) as thread:  # a thread of its own, for it cannot come back
        return thread.submit(enter_and_connect).result()


def run(*words: object, environment: dict[str, str] | None = None) -> str:
    """Run a command on this machine, which must succeed; return its output."""
    command: Sequence[str] = [str(word) for word in words]
    # To a file: what the tool starts in the background would keep a pipe open.
    with tempfile.TemporaryFile("w+") as output:
        done = subprocess.run(
            command, env=environment, stdout=output, stderr=output, timeout=90, check=False
        )
        output.seek(0)
        said = output.read()
    assert done.returncode == 0, f"{shlex.join(command)}\n{said}"
    return said


def stop_quietly(lab: Lab) -> None:
    """Take a lab down, whatever state it is in."""
    with suppress(AssertionError, OSError):
        lab.down()
