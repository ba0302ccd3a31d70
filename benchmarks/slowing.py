"""Slows real processes: a share of a processor for each, a pause, a busy neighbour.

Every process gets a control group of its own, so that slowing one does not speed the others up. It
takes root, and the cpu controller of either version of control groups.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from random import Random
from threading import Event, Thread

_ROOT = Path("/sys/fs/cgroup")
_PERIOD_US = 100_000
_BUSY = "while True: pass"


class Share:
    """A control group that gives its processes a share of one processor together."""

    def __init__(self, name: str) -> None:
        self._v1 = (_ROOT / "cpu").is_dir()
        self._folder = (_ROOT / "cpu" if self._v1 else _ROOT) / f"downpour-{os.getpid()}-{name}"
        self._folder.mkdir()

    def take(self, process: int) -> None:
        """Put a process, with all its threads, into the group."""
        (self._folder / "cgroup.procs").write_text(str(process))

    def set(self, share: float) -> None:
        """Allow so much of a processor from now on."""
        quota_us = int(share * _PERIOD_US)
        if self._v1:
            (self._folder / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (self._folder / "cpu.cfs_quota_us").write_text(str(quota_us))
        else:
            (self._folder / "cpu.max").write_text(f"{quota_us} {_PERIOD_US}")

    def remove(self) -> None:
        """Remove the group, once its processes are gone."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with suppress(OSError):
                self._folder.rmdir()
                return
            time.sleep(0.05)


def why_not() -> str:
    """Say why nothing can be slowed here; empty where it can."""
    if os.geteuid() != 0:
        return "control groups need root"
    if not ((_ROOT / "cpu").is_dir() or (_ROOT / "cgroup.controllers").is_file()):
        return "no cpu controller of control groups is mounted"
    return ""


@contextmanager
def _beside(act: Callable[[Event], None]) -> Iterator[None]:
    """Repeat something in a thread of its own; it is told when to stop."""
    done = Event()

    def repeat() -> None:
        while not done.is_set():
            act(done)

    thread = Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def paused_now_and_then(
    process: int, every_seconds: float, for_seconds: float
) -> AbstractContextManager[None]:
    """Let a process stand still again and again."""

    def pause(done: Event) -> None:
        if not done.wait(every_seconds):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGSTOP)
                done.wait(for_seconds)
                os.kill(process, signal.SIGCONT)

    return _beside(pause)


def wandering(
    shares: Sequence[Share], share: float, for_seconds: float
) -> AbstractContextManager[None]:
    """Let one process after the other, by a fixed chance, have a quarter of its share."""
    draw = Random(0)

    def slow_another(done: Event) -> None:
        slow = draw.choice(shares)
        slow.set(share / 4)
        done.wait(for_seconds)
        slow.set(share)

    return _beside(slow_another)


@contextmanager
def neighbours(share: Share, count: int) -> Iterator[None]:
    """Let a process have busy neighbours within its share."""
    busy = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(count)]
    try:
        for one in busy:
            share.take(one.pid)
        yield
    finally:
        for one in busy:
            one.kill()
            one.wait()
