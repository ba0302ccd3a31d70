"""One run of a peer: its command, what it prints, the processes it takes, and what befalls them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from slowing import paused_now_and_then

from peers.known import Peer

PATIENCE_SECONDS = 150.0
"""After which a run hangs, and is ended."""
QUARTER = (0.025, 0.075)
"""Seconds for which a worker at a quarter of its speed runs, and stands still."""

Event = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How a peer is run: the words of its command, and what befalls it.

    Args:
        words: What its script is asked for.
        workers: How many processes train or meet.
        kills: Whom a `kill -9` hits after the first epoch: "worker", or "first", the process that
            the command has started, which is a worker, too, where that is all that is started.
        slow: One worker stands still for three quarters of the time, from the first batch on.
        until: The accuracy at which the run is ended.
        weighed: Its memory is looked at, which takes processor time for each of its processes.
        patience_seconds: After which it hangs, and is ended.
    """

    words: tuple[str, ...] = ()
    workers: int = 2
    kills: str = ""
    slow: bool = False
    until: float = 1.0
    weighed: bool = False
    patience_seconds: float = PATIENCE_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A run of a peer: its events, its exit status, what it took, and the load as it began."""

    events: list[Event]
    status: int
    began: float
    ended: float
    memory_mb: float
    user_seconds: float
    load: float
    patience_seconds: float = PATIENCE_SECONDS

    def first(self, event: str) -> float | None:
        """Return when an event was first said; None if it never was."""
        return next((one["at"] for one in self.events if one["event"] == event), None)

    @property
    def hung(self) -> bool:
        """Whether it was ended because it took too long."""
        return self.ended - self.began > self.patience_seconds


def run(peer: Peer, python: Path, way: Way) -> Ran:
    """Run a peer to its end, or until it has come to what was wanted of it."""
    began, load = time.time(), os.getloadavg()[0]
    events: list[Event] = []
    starting = subprocess.Popen(
        peer.command(python, *way.words, workers=way.workers),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=variables(peer, python),
        start_new_session=True,
    )
    with ExitStack() as stack:
        process = stack.enter_context(starting)
        took = stack.enter_context(watched(process, way))
        for event in said(process.stdout or ()):
            events.append(event)
            befall(way, process.pid, events, stack)
            if event.get("accuracy", 0) >= way.until:
                break
        else:
            process.wait()
    return Ran(
        events=events,
        status=process.returncode,
        began=began,
        ended=time.time(),
        memory_mb=took.memory / 1e6,
        user_seconds=sum(took.user.values()),
        load=load,
        patience_seconds=way.patience_seconds,
    )


def befall(way: Way, started: int, events: list[Event], stack: ExitStack) -> None:
    """Slow a worker once a batch is trained, or kill a process once an epoch is."""
    event = events[-1]["event"]
    if sum(one["event"] == event for one in events) > 1:
        return
    pid = started if way.kills == "first" else last_worker(events)
    if pid is None:
        return
    if event == "first" and way.slow:
        stack.enter_context(paused_now_and_then(pid, *QUARTER))
    if event == "epoch" and way.kills:
        events.append(killed(pid))


def variables(peer: Peer, python: Path) -> dict[str, str]:
    """Return the environment variables of a run, as if the peer's environment were activated."""
    return {
        **os.environ,
        "PATH": os.pathsep.join((str(python.parent), os.environ.get("PATH", os.defpath))),
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "OMP_NUM_THREADS": "1",
        "RAY_AUTH_MODE": "disabled",
        "RAY_DEDUP_LOGS": "0",
        **peer.environment,
    }


def said(lines: Iterable[str]) -> Iterator[Event]:
    """Yield the events among the lines of a peer, whatever stands around them.

    Processes that print at once may put several into one line.
    """
    decoder = json.JSONDecoder()
    for line in lines:
        place = line.find("{")
        while place >= 0:
            event, end = None, place + 1
            with suppress(ValueError):
                event, end = decoder.raw_decode(line, place)
            if isinstance(event, dict) and "event" in event:
                yield event
            place = line.find("{", end)


def last_worker(events: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the process of the worker that was last heard of, if any was."""
    pids = [int(one["pid"]) for one in events if one["event"] == "worker"]
    return pids[-1] if pids else None


def killed(pid: int) -> Event:
    """Kill a process."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return {"event": "killed", "at": time.time(), "pid": pid}


@dataclass(slots=True)
class Took:
    """The most bytes that processes held together, and the seconds that each has computed."""

    memory: float = 0.0
    user: dict[psutil.Process, float] = field(default_factory=dict)

    def look(self, family: Iterable[psutil.Process], *, weighed: bool) -> None:
        """Look at processes as they are now; of one that has ended, the last look counts."""
        if weighed:
            self.memory = max(self.memory, sum(map(_held, family)))
        for one in family:
            with suppress(psutil.Error):
                self.user[one] = one.cpu_times().user


@contextmanager
def watched(process: subprocess.Popen[str], way: Way) -> Iterator[Took]:
    """Look at what a process and its children take meanwhile; ends what is left of them."""
    took, over, root = Took(), threading.Event(), psutil.Process(process.pid)
    family = {root}

    def look() -> None:
        began = time.monotonic()
        while not over.wait(0.25):
            with suppress(psutil.Error):
                family.update(root.children(recursive=True))
            took.look(family, weighed=way.weighed)
            if time.monotonic() - began > way.patience_seconds:
                _end(family)

    watching = threading.Thread(target=look)
    watching.start()
    try:
        yield took
    finally:
        over.set()
        watching.join()
        _end(family)


def _end(family: Iterable[psutil.Process]) -> None:
    for one in family:
        with suppress(psutil.Error):
            one.kill()


def _held(process: psutil.Process) -> float:
    try:
        return float(process.memory_full_info().pss)
    except (psutil.Error, AttributeError):
        return 0.0
