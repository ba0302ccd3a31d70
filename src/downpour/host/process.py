"""This process: signals, its session, and threads beside the main one."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, Full, Queue, SimpleQueue
from threading import Thread
from typing import ClassVar, Generic, TypeVar

import psutil

from downpour.host.text import shortened

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_LEAVING = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class Terminated(KeyboardInterrupt):
    """A signal tells a command to stop, as Ctrl-C does; `last` is the number of the last one."""

    last: ClassVar[int] = signal.SIGINT

    def __init__(self, number: int) -> None:
        super().__init__(number)
        Terminated.last = number


def stop_at_signals() -> None:
    """Let TERM and HUP end a command as Ctrl-C does, once; servers replace it by `on_leaving`."""

    def stop(number: int, _: object) -> None:
        for each in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, signal.SIG_IGN)
        raise Terminated(number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores HUP
            signal.signal(number, stop)


def on_leaving(leave: Callable[[int], object]) -> None:
    """Call `leave` with the number of each signal from an engine, including repeated ones.

    People send INT (Ctrl-C). Engines send TERM, sometimes twice: Slurm sends it to every process of
    a step, and a batch script that passes it on sends a second one. Slurm's --signal and submitit
    send USR1 or USR2 before a limit, and a terminal that closes sends HUP. All of them mean the
    same. HUP without a closed terminal comes from a program that rotates logs, and ends no server.
    """
    had_terminal = _has_terminal()

    def hear(number: int, _: object) -> None:
        if number != signal.SIGHUP or (had_terminal and not _has_terminal()):
            leave(number)

    for number in _LEAVING:
        # nohup ignores HUP, so that the process outlives its terminal.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, hear)


def _has_terminal() -> bool:
    """Whether this process has a terminal that has not closed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def on_interrupt(leave: Callable[[], object]) -> None:
    """Call `leave` at Ctrl-C; a second Ctrl-C ends the process at once, in case `leave` hangs."""

    def once(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        leave()

    signal.signal(signal.SIGINT, once)


def waiting_for_leave() -> Callable[[float], bool]:
    """Return a function that waits some seconds, and returns true early if a signal comes."""
    # A SimpleQueue, because its `put` is reentrant and handlers run in the waiting thread.
    told = SimpleQueue[None]()
    on_leaving(lambda _: told.put(None))
    on_interrupt(lambda: told.put(None))

    def wait(seconds: float) -> bool:
        with suppress(Empty):
            told.get(block=seconds > 0, timeout=seconds or None)
            return True
        return False

    return wait


@contextmanager
def kept_handlers() -> Iterator[None]:
    """Restore the handlers that a library replaces in this block; only the main thread has any."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *_LEAVING)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # None: not a Python handler
                signal.signal(number, handler)


def end_with_parent(number: int = signal.SIGTERM) -> None:
    """Let the kernel (Linux) send a signal to this process when the thread that started it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number)


def end_session(leader: int) -> None:
    """Kill all processes of a leader's session, except the leader itself.

    A user's task may start processes (data helpers, tracking libraries) that would outlive it.
    """
    if leader == os.getsid(0):
        return
    for pid in psutil.pids():
        with suppress(ProcessLookupError, PermissionError):
            if pid != leader and os.getsid(pid) == leader:
                os.kill(pid, signal.SIGKILL)


def signal_group(leader: int, number: signal.Signals) -> None:
    """Signal a session's leader and its group; do nothing if it has ended, or does not lead yet."""
    with suppress(ProcessLookupError, PermissionError):  # macOS raises PermissionError for a zombie
        os.killpg(leader, number)


WAITING_MAX = 1000
"""How many values may wait for a slow function; the function misses any further ones."""
CLOSE_SECONDS = 5.0
"""How long a run that ends may wait for a user's function."""

_Value = TypeVar("_Value")


class Background(Generic[_Value]):
    """Calls a function with one value after another; `take` never waits for it.

    We log a function's error once, with its `name`. The function still gets later values, but
    misses one that comes while `waiting_max` values wait.
    """

    def __init__(
        self, name: str, function: Callable[[_Value], object], waiting_max: int = WAITING_MAX
    ) -> None:
        self._name = name
        self._function = function
        # None ends the thread.
        self._values: Queue[tuple[_Value] | None] = Queue(waiting_max)
        self._left_out = 0
        self._has_failed = False
        self._thread = Thread(target=self._run, name=f"background {name}", daemon=True)
        self._thread.start()

    def take(self, value: _Value) -> None:
        """Hand over a value; drop it if too many wait."""
        try:
            self._values.put_nowait((value,))
        except Full:
            self._left_out += 1

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Wait until the function has had every value, but no longer than `seconds`."""
        deadline = time.monotonic() + seconds
        try:
            self._values.put(None, timeout=seconds)
        except Full:
            self._left_out += self._values.qsize()
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            log.warning("%s has not returned after %.0f s; we stop waiting", self._name, seconds)
        if self._left_out:
            log.warning("%s was too slow: it missed %d calls", self._name, self._left_out)

    def _run(self) -> None:
        while (item := self._values.get()) is not None:
            try:
                self._function(*item)
            except Exception as error:
                if not self._has_failed:
                    self._has_failed = True
                    what = shortened(f"{type(error).__name__}: {error}")
                    log.warning("%s raised %s; its later errors are not shown", self._name, what)
                    log.debug("%s raised", self._name, exc_info=error)


_WANTED = 65536
"""Many systems have a soft limit of only 1,024."""
CONNECTIONS_MAX = 16384
"""More connections would need more threads than a process can run well."""
CONNECTIONS_OF_A_WORKER = 2
"""To its manager: one for heartbeats, and one for reports. The manager opens a third one to it."""
_RESERVE_MAX = 512
_FILES_AT_ONCE_MAX = 64


def allow_many_descriptors() -> None:
    """Raise this process's limit as far as the system permits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def descriptors_allowed() -> int:
    """Return the number of descriptors that this process may hold."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _WANTED if soft == resource.RLIM_INFINITY else soft


def connections_allowed() -> int:
    """Return how many connections this process may accept, so that its own files find room.

    It leaves a quarter for files, and the rest of a worker's descriptors for calls back.
    """
    free = descriptors_allowed() - min(_RESERVE_MAX, descriptors_allowed() // 4)
    workers = free // (CONNECTIONS_OF_A_WORKER + 1)
    return min(CONNECTIONS_MAX, workers * CONNECTIONS_OF_A_WORKER)


def files_at_once() -> int:
    """Return how many files one thread may map at a time; each holds a descriptor."""
    return min(_FILES_AT_ONCE_MAX, max(1, descriptors_allowed() // 16))


def lacks_descriptors(error: OSError) -> bool:
    """Whether an operation failed because this process, or its system, has none left."""
    return error.errno in {errno.EMFILE, errno.ENFILE}
