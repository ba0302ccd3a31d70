"""The disturbances that a user asks for: slow workers, and processes that die at a given time.

Users write both as text: `worker-3=0.25,pauses=6/10` slows a worker, and `worker-2@round3` or
`manager@20s` kills a process. Users name workers as `run` does, from `worker-1` on.

To make a worker slow, we stop it and let it continue, many times per second. SIGSTOP and SIGCONT
need no rights beyond the user's own, and the worker's code knows nothing of them. Everything that
the worker does takes longer: steps, files, heartbeats.
"""

from __future__ import annotations

import math
import re
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any, Self

from downpour.base.errors import SpecError
from downpour.host.process import signal_group

STRETCH_SECONDS = 0.05
"""The length of a run or a stop: the shorter of the two.

On a busy machine, a stop takes up to 3 ms longer. With 20 ms, a process that should run at 0.25 of
its speed ran at 0.21. With this value, it runs at 0.24.
"""
STILL_SECONDS_MAX = 1.0
"""A stop delays a heartbeat by its own length at most. The manager misses a worker after 5 s."""
_OWED_SECONDS_MAX = 3 * STILL_SECONDS_MAX
_RUN_SECONDS_MIN = 0.001


class DutyCycle:
    """Decides how long a process runs and stands still, to reach a share of its full speed.

    A thread that wakes late makes a stretch too long. The next stretches make up for it, so the
    share is right over time. The process runs for `speed` of the time, above 0 and below 1.
    """

    def __init__(self, speed: float) -> None:
        self._still_per_run = 1 / speed - 1
        longest = STILL_SECONDS_MAX / self._still_per_run
        self._usual_seconds = min(STRETCH_SECONDS * max(1.0, 1 / self._still_per_run), longest)
        self._owed_seconds = 0.0

    @property
    def run_seconds(self) -> float:
        """How long the process should run now."""
        return max(_RUN_SECONDS_MIN, self._usual_seconds - self._owed_seconds / self._still_per_run)

    @property
    def still_seconds(self) -> float:
        """How long the process should stand still now."""
        return min(max(0.0, self._owed_seconds), STILL_SECONDS_MAX)

    def ran(self, seconds: float) -> None:
        """Note how long the process has run."""
        # Bounded both ways, because a laptop that sleeps for an hour must not owe an hour.
        owed = self._owed_seconds + seconds * self._still_per_run
        self._owed_seconds = min(owed, _OWED_SECONDS_MAX)

    def stood(self, seconds: float) -> None:
        """Note how long the process has stood still."""
        self._owed_seconds = max(self._owed_seconds - seconds, -_OWED_SECONDS_MAX)


class Slowing:
    """Slows a worker in a thread, until `close`; `process_of` returns its process, if any."""

    def __init__(self, slow: Slow, process_of: Callable[[str], int | None]) -> None:
        self._slow = slow
        self._process_of = process_of
        self._cycle = DutyCycle(slow.speed) if slow.speed < 1 else None
        self._over = Event()
        self._thread = Thread(target=self._act, name=f"slow {slow.who}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Let the worker run at full speed; returns when the thread has ended."""
        self._over.set()
        self._thread.join()

    def _act(self) -> None:
        began = time.monotonic()
        while not self._over.is_set():
            until_pause, paused = self._pause_at(time.monotonic() - began)
            if paused:
                self._stand(paused)
            elif self._cycle is None:
                self._over.wait(until_pause)
            else:
                self._cycle.ran(self._run(min(self._cycle.run_seconds, until_pause)))
                self._cycle.stood(self._stand(self._cycle.still_seconds))

    def _pause_at(self, seconds: float) -> tuple[float, float]:
        """Return the time until the next pause, and the rest of the current one."""
        pauses = self._slow.pauses
        if pauses is None:
            return float("inf"), 0.0
        # The pause comes last in each interval, so a worker begins before it pauses.
        left = pauses.every_seconds - seconds % pauses.every_seconds
        return max(0.0, left - pauses.still_seconds), left if left <= pauses.still_seconds else 0.0

    def _run(self, seconds: float) -> float:
        began = time.monotonic()
        self._over.wait(seconds)
        return time.monotonic() - began

    def _stand(self, seconds: float) -> float:
        """Stop the worker for a moment; returns how long it stood still."""
        process = self._process_of(self._slow.who)
        if process is None:
            return self._run(seconds)
        began = time.monotonic()
        signal_group(process, signal.SIGSTOP)
        try:
            self._over.wait(seconds)
        finally:
            signal_group(process, signal.SIGCONT)
        return time.monotonic() - began


MANAGER = "manager"
_SLOW = "must be WORKER=SPEED[,pauses=SECONDS/EVERY], such as worker-3=0.25,pauses=6/10"
_KILL = (
    "must be WHO@roundN or WHO@SECONDSs, such as worker-2@round3 or manager@20s; a worker may have "
    ",restart"
)
_PAUSES = re.compile(r"pauses=([^/]+)/([^/]+)")
_WHEN = re.compile(
    r"(?P<who>[^@]+)@(round(?P<round>\d{1,9})|(?P<seconds>[\d.]{1,20})s)(?P<again>,restart)?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses:
    """A process stands still for `still_seconds` of each `every_seconds`."""

    still_seconds: float
    every_seconds: float

    def __str__(self) -> str:
        return f"stands still for {self.still_seconds:g} s of each {self.every_seconds:g} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    """A worker runs at a share of its `speed`, above 0 and at most 1, and may make pauses."""

    who: str
    speed: float = 1.0
    pauses: Pauses | None = None

    @classmethod
    def of(cls, worker: str, asked: object) -> Self:
        """Read how much to slow a worker: a number, or text such as `0.25,pauses=6/10`."""
        given = f"{worker}={asked}"
        speed_text, comma, rest = str(asked).partition(",")
        speed = _number(speed_text)
        if not worker or speed is None:
            raise SpecError("slow", given, _SLOW)
        if not 0 < speed <= 1:
            raise SpecError("slow", given, "SPEED must be above 0 and at most 1")
        pauses = _pauses(given, rest) if comma else None
        if speed == 1 and pauses is None:
            raise SpecError("slow", given, "SPEED must be below 1, unless you add pauses")
        return cls(who=worker, speed=speed, pauses=pauses)

    def __str__(self) -> str:
        pauses = self.pauses
        also = f",pauses={pauses.still_seconds:g}/{pauses.every_seconds:g}" if pauses else ""
        return f"{self.who}={self.speed:g}{also}"

    @property
    def what(self) -> str:
        """The effect on the worker, in words."""
        slowly = [f"runs at {self.speed:g} of its speed"] if self.speed < 1 else []
        return " and ".join([*slowly, *map(str, filter(None, [self.pauses]))])


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """The death of a process, at the beginning of a round (from 1) or some seconds into training.

    The launcher always restarts the manager, but a worker only if `again` is set.
    """

    who: str
    round: int | None = None
    seconds: float = 0.0
    again: bool = False

    @classmethod
    def of(cls, text: object) -> Self:
        """Read which process dies, and when."""
        found = _WHEN.fullmatch(text) if isinstance(text, str) else None
        seconds = _number(found["seconds"] or "0") if found else None
        if found is None or seconds is None:
            raise SpecError("kill", text, _KILL)
        if found["again"] and found["who"] == MANAGER:
            raise SpecError("kill", text, "the manager always restarts; leave out ,restart")
        number = int(found["round"]) if found["round"] else None
        again = bool(found["again"])
        return cls(who=found["who"], round=number, seconds=seconds, again=again)

    def __str__(self) -> str:
        when = f"{self.seconds:g}s" if self.round is None else f"round{self.round}"
        return f"{self.who}@{when}{',restart' if self.again else ''}"

    @property
    def comes_back(self) -> bool:
        """Whether another process takes the place of the killed one."""
        return self.again or self.who == MANAGER

    @property
    def what(self) -> str:
        """The effect on the process, in words."""
        return f"is killed and {'starts again' if self.comes_back else 'stays away'}"

    def is_due(self, rounds_done: int, trained_seconds: float) -> bool:
        """Whether the process should be dead by now."""
        if self.round is not None:
            return rounds_done >= self.round - 1
        return trained_seconds >= self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbances:
    """All disturbances of a run."""

    slow: tuple[Slow, ...] = ()
    kill: tuple[Kill, ...] = ()

    @classmethod
    def of(cls, slow: object = None, kill: object = None) -> Self:
        """Read the user's values: a mapping or texts for `slow`, and texts for `kill`."""
        slowed = [Slow.of(who, how) for who, how in _pairs(slow)]
        names = [one.who for one in slowed]
        for name in names:
            if names.count(name) > 1:
                raise SpecError("slow", name, "appears twice; name each worker once")
        return cls(slow=tuple(slowed), kill=tuple(Kill.of(one) for one in _texts("kill", kill)))

    def __bool__(self) -> bool:
        """Whether the user asked for any."""
        return bool(self.slow or self.kill)

    def check(self, workers: int, rounds: int, *, is_local: bool) -> None:
        """Refuse disturbances that a run with these workers and at most these rounds cannot have.

        The run `is_local` if each worker is a process of this machine.
        """
        if self and not is_local:
            field, first = ("slow", self.slow[0]) if self.slow else ("kill", self.kill[0])
            accepted = "needs --on local, because only then the processes belong to this run"
            raise SpecError(field, str(first), accepted)
        names = [f"worker-{number}" for number in range(1, workers + 1)]
        for slowed in self.slow:
            _check_name("slow", slowed.who, str(slowed), names)
        for kill in self.kill:
            _check_name("kill", kill.who, str(kill), [MANAGER, *names])
            if kill.round is not None and not 1 <= kill.round <= rounds:
                raise SpecError("kill", str(kill), f"this run has at most {rounds} rounds")
        lost = {kill.who for kill in self.kill if not kill.comes_back}
        if lost and lost >= set(names):
            accepted = "leaves no worker; add ,restart to one of them"
            raise SpecError("kill", str(self.kill[-1]), accepted)


UNDISTURBED = Disturbances()


def _check_name(field: str, name: str, given: str, known: Sequence[str]) -> None:
    if name not in known:
        workers = f"worker-1 to {known[-1]}" if len(known) > 1 else known[-1]
        also = f"{MANAGER} or " if MANAGER in known else ""
        raise SpecError(field, given, f"WHO must be {also}{workers}")


def _pairs(slow: object) -> Iterable[tuple[str, object]]:
    if isinstance(slow, Mapping):
        return [(str(who), how) for who, how in slow.items()]
    return [(one.partition("=")[0], one.partition("=")[2]) for one in _texts("slow", slow)]


def _texts(field: str, given: Any) -> list[str]:
    if given is None:
        return []
    several = [given] if isinstance(given, str) else given
    if not isinstance(several, Collection) or not all(isinstance(one, str) for one in several):
        raise SpecError(field, given, _SLOW if field == "slow" else _KILL)
    return list(several)


def _pauses(given: str, text: str) -> Pauses:
    found = _PAUSES.fullmatch(text)
    still, every = (_number(found[1]), _number(found[2])) if found else (None, None)
    if still is None or every is None:
        raise SpecError("slow", given, _SLOW)
    if not 0 < still < every:
        raise SpecError("slow", given, "the pause must be above 0 s and shorter than its interval")
    return Pauses(still_seconds=still, every_seconds=every)


def _number(text: str) -> float | None:
    """Read a finite number; None if the text is not one."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
