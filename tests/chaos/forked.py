"""Processes of Downpour that are there at once: forks of one that has imported torch already."""

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from threading import Lock
from typing import IO, Any, Self

QUIET = {"OMP_NUM_THREADS": "1"}
_SCRIPT = Path(__file__).with_name("forkserver.py")


class Forked:
    """A process of Downpour; what `subprocess.Popen` offers of it, and a test uses, is here.

    Args:
        words: what follows `downpour`, or the name of another module.
        environment: its environment variables, all of them.
        folder: where it runs; here by default.
        files: the descriptors that it gets, by the numbers that it has them by; 1 and 2 are its
            standard streams, which are else those of this process's first one.
        module: what it runs.
        session: whether it has a session of its own.
    """

    stdin: IO[Any] | None = None
    stdout: IO[Any] | None = None

    def __init__(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        folder: Path | None = None,
        files: Mapping[int, int] | None = None,
        module: str = "downpour",
        *,
        session: bool = False,
    ) -> None:
        self.args = words
        self.returncode: int | None = None
        self._news, told = os.pipe()
        given = files or {}
        request = {
            "module": module,
            "words": list(words),
            "environment": dict(environment),
            "folder": str(Path(folder or ".").absolute()),
            "numbers": list(given),
            "session": session,
        }
        try:
            _server().fork(request, [told, *given.values()])
        finally:
            os.close(told)
        self._heard = b""
        self._look(lines=1, seconds=None)
        self.pid = int(self._heard.split()[0])

    def __del__(self) -> None:
        os.close(self._news)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close its pipes, and wait for its end."""
        for pipe in (self.stdin, self.stdout):
            if pipe is not None:
                pipe.close()
        self.wait()

    def communicate(self, said: str) -> None:
        """Say something, then nothing more, and wait for the end."""
        assert self.stdin is not None
        with suppress(BrokenPipeError), self.stdin:
            self.stdin.write(said)
        self.wait()

    def poll(self) -> int | None:
        """Return the status if it has ended, negative for a signal."""
        if self.returncode is None and self._look(lines=2, seconds=0):
            self.returncode = int(self._heard.split()[1])
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; raises subprocess.TimeoutExpired if it does not come in time."""
        self._look(lines=2, seconds=timeout)
        if (status := self.poll()) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return status

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, if it is there."""
        with suppress(ProcessLookupError):
            if self.poll() is None:
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it without a warning."""
        self.send_signal(signal.SIGKILL)

    def _look(self, lines: int, seconds: float | None) -> bool:
        """Listen until the server has told so much: the process's ID, then its status."""
        while self._heard.count(b"\n") < lines:
            if not select.select([self._news], [], [], seconds)[0]:
                return False
            more = os.read(self._news, 4096)
            if not more:
                raise EOFError("the fork server has died")
            self._heard += more
        return True


def run(
    words: Sequence[str], environment: Mapping[str, str], folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; returns its status and what it said."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        command = Forked(words, environment, folder, {1: out.fileno(), 2: errors.fileno()})
        status = command.wait()
        for file in (out, errors):
            file.seek(0)
        return subprocess.CompletedProcess(words, status, out.read(), errors.read())


def model_of_run(folder: Path, *words: str, where: Path | None = None) -> bytes:
    """Return the model that `run` makes in a folder of this machine, with nothing in its way."""
    done = run(
        ["run", *words, "--shared", str(folder), "--on", "inline", "--json"], os.environ, where
    )
    assert done.returncode == 0, done.stderr
    experiment = str(json.loads(done.stdout)["experiment"])
    return (folder / "experiments" / experiment / "model.safetensors").read_bytes()


class Forks:
    """What the module `subprocess` is to those who start a module of ours: they get a fork."""

    PIPE, DEVNULL, TimeoutExpired = subprocess.PIPE, subprocess.DEVNULL, subprocess.TimeoutExpired

    def Popen(  # noqa: N802
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: IO[Any] | None = None,
        pass_fds: Sequence[int] = (),
        start_new_session: bool = False,
        text: bool = False,
    ) -> Any:
        """Fork it; its standard input and output may be nothing or pipes. A user's is started."""
        if command[1] != "-m":
            own: Any = {"env": env, "start_new_session": start_new_session}
            return subprocess.Popen(command, stdin=stdin, stdout=stdout, **own)
        _, _, module, *words = command
        environment = os.environ if env is None else env
        files = {file: file for file in pass_fds}
        with ExitStack() as theirs, open(os.devnull, "r+") as nothing:
            files |= {2: stderr.fileno()} if stderr is not None else {}
            pipes = {}
            for number, asked in ((0, stdin), (1, stdout)):
                if asked == self.DEVNULL:
                    files[number] = nothing.fileno()
                elif asked == self.PIPE:
                    ends = os.pipe()
                    files[number], pipes[number] = ends[number], ends[1 - number]
                    theirs.callback(os.close, ends[number])
            made = Forked(words, environment, None, files, module, session=start_new_session)
        if 0 in pipes:
            made.stdin = os.fdopen(pipes[0], "w") if text else os.fdopen(pipes[0], "wb", 0)
        if 1 in pipes:
            made.stdout = os.fdopen(pipes[1], "r" if text else "rb")
        return made


class _Server:
    """The process that forks, for as long as this one lives."""

    def __init__(self) -> None:
        self._calls, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = Lock()
        with theirs:
            self._popen = subprocess.Popen(
                [sys.executable, str(_SCRIPT), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={**os.environ, **QUIET},
            )

    def fork(self, request: object, files: list[int]) -> None:
        """Ask for a process; its news go to the first of the files, and the others are its own."""
        with self._lock:
            socket.send_fds(self._calls, [json.dumps(request).encode()], files)

    def close(self) -> None:
        """End it; what it has forked goes on."""
        self._calls.close()
        self._popen.wait()


@cache
def _server() -> _Server:
    server = _Server()
    atexit.register(server.close)
    return server
