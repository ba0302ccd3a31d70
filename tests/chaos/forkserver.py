"""Forks processes of Downpour from one that has imported what they need.

A manager and a worker import torch and more for two and a half seconds of a core each, and the
tests of this folder start hundreds of them. A fork of this process is a process like any other
that `python -m downpour` would have started, and it serves at once. `forked.py` calls this
script; nothing here computes anything, because threads do not survive a fork.
"""

import atexit
import fcntl
import gc
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

REQUEST_BYTES_MAX = 200_000
FILES_MAX = 64
OUT_OF_THE_WAY = 500
_NEEDED = (
    "downpour.cli.commands",
    "downpour.cluster.manager.process",
    "downpour.cluster.manager.global_model",
    "downpour.cluster.worker.process",
    "downpour.cluster.worker.task_runner",
    "downpour.learning.intra_worker.team",
)


def serve(calls: socket.socket) -> dict[str, Any] | None:
    """Fork for each request; returns in each fork, with its request, and None at the end."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    running: dict[int, int] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(calls, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in selector.select()]
            if woken in ready:
                os.read(woken, 4096)
                reap(running)
            if calls in ready:
                text, files, _, _ = socket.recv_fds(calls, REQUEST_BYTES_MAX, FILES_MAX)
                if not text:
                    return None
                request: dict[str, Any] = json.loads(text)
                news, *given = files
                child = os.fork()
                if child == 0:
                    begin(given, [calls.fileno(), woken, wake, news, *running.values()])
                    place(given, request.pop("numbers"))
                    return request
                for file in given:
                    os.close(file)
                os.write(news, f"{child}\n".encode())
                running[child] = news


def reap(running: dict[int, int]) -> None:
    """Tell the statuses of those that have ended."""
    for child, news in list(running.items()):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            with suppress(BrokenPipeError):  # nobody wants to know
                os.write(news, f"{os.waitstatus_to_exitcode(status)}\n".encode())
            os.close(running.pop(child))


def begin(given: list[int], of_the_server: list[int]) -> None:
    """Make a fork what a new process is, with nothing of the server's."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for file in of_the_server:
        os.close(file)
    for place, file in enumerate(given):  # out of the way of the numbers that they will have
        given[place] = fcntl.fcntl(file, fcntl.F_DUPFD, OUT_OF_THE_WAY)
        os.close(file)


def place(given: list[int], numbers: list[int]) -> None:
    """Give each file the number that the caller has it by."""
    for file, number in zip(given, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)
    # Those that the interpreter made remember whether the server's could be sought in.
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115


def become(
    module: str, words: list[str], environment: dict[str, str], folder: str, *, session: bool
) -> None:
    """Run a module as `python -m` does, perhaps in a session of its own."""
    if session:
        os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    named = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [folder, *named, *(path for path in sys.path[1:] if path not in named)]
    sys.argv[1:] = words
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        leave(end.code)
    leave(0)


def leave(code: object) -> NoReturn:
    """End as an interpreter does, but for a visit to all that was imported: it copies the pages."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def main() -> None:
    """Serve the socket that is named, or be what was asked for."""
    calls = socket.socket(fileno=int(sys.argv[1]))
    for module in _NEEDED:
        import_module(module)
    gc.freeze()
    request = serve(calls)
    if request is not None:
        become(**request)


if __name__ == "__main__":
    main()
