"""The signals that end a process, and the effect of repeated ones.

People send INT (Ctrl-C). Engines send TERM, sometimes twice: Slurm sends it to every process of a
step, and a batch script that passes it on sends a second one. Slurm's --signal and submitit send
USR1 or USR2 before a limit, and a terminal that closes sends HUP. All of them mean the same. HUP
without a closed terminal comes from a program that rotates logs, and ends no server.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import ClassVar

_PR_SET_PDEATHSIG = 1
_LEAVING = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class Terminated(KeyboardInterrupt):
    """A signal tells a command to stop, as Ctrl-C does.

    `last` is the signal's number, for a caller that sees only the interruption.
    """

    last: ClassVar[int] = signal.SIGINT

    def __init__(self, number: int) -> None:
        super().__init__(number)
        Terminated.last = number


def stop_at_signals() -> None:
    """Let TERM and HUP end a command as Ctrl-C does; ignore further ones.

    A server replaces this with `on_leaving`.
    """

    def stop(number: int, _: object) -> None:
        for each in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, signal.SIG_IGN)
        raise Terminated(number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores HUP
            signal.signal(number, stop)


def on_leaving(leave: Callable[[int], object]) -> None:
    """Call `leave` with the number of each signal from an engine, including repeated ones."""
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
