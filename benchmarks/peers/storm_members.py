"""What a storm does to the members of a training, and what their notes tell of it."""

from __future__ import annotations

import argparse
import random
import signal
import statistics
import sys
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from common import Row

if TYPE_CHECKING:
    from tests.lab.hosts import HostProcess, LabHost

KINDS = {"kill": 28, "cut": 9, "stop": 8, "join": 5}
"""How often each fault comes; the first three are as in ft-diloco's storm."""
LASTS_SECONDS = {"cut": (15.0, 40.0), "stop": (10.0, 30.0)}
LOOK_SECONDS = 0.02


@dataclass(slots=True)
class Member:
    """A host's worker or replica group, which is started again whenever it ends."""

    host: LabHost
    command: Sequence[str]
    logs: Path
    variables: dict[str, str] = field(default_factory=dict)
    process: HostProcess | None = None
    kills: list[float] = field(default_factory=list)
    is_wanted: bool = False
    heals_at: float = 0.0
    heal: Callable[[], object] | None = None

    def look(self) -> None:
        """Start it if it should run, and end a fault whose time is over."""
        if self.heal is not None and time.monotonic() >= self.heals_at:
            self.heal()
            self.heal = None
        if self.is_wanted and (self.process is None or self.process.poll() is not None):
            with (self.logs / f"{self.host.name}.log").open("a") as log:
                self.process = self.host.start(
                    *self.command, environment=self.variables, output=log, errors=log
                )

    def suffer(self, kind: str, seconds: float) -> None:
        """Let something happen to it; a cut or a stop lasts so long."""
        assert self.process is not None
        if kind == "kill":
            self.kills.append(time.monotonic())
            self.process.send_signal(signal.SIGKILL)
            return
        self.heals_at = time.monotonic() + seconds
        if kind == "cut":
            self.host.cut()
            self.heal = self.host.heal
        else:
            process = self.process
            process.send_signal(signal.SIGSTOP)
            self.heal = lambda: process.send_signal(signal.SIGCONT)

    def join_or_leave(self) -> None:
        """Join, or leave if it is there."""
        self.is_wanted = not self.is_wanted
        if not self.is_wanted and self.process is not None:
            self.process.send_signal(signal.SIGTERM)


class Storm:
    """What happens to the members, and when.

    Args:
        members: all, of whom the last joins and leaves.
        options: of the command line.
    """

    def __init__(self, members: Sequence[Member], options: argparse.Namespace) -> None:
        self.counts = dict.fromkeys(KINDS, 0)
        self.sizes: list[tuple[float, int]] = [(0.0, options.members)]
        self.begins_at = 0.0
        self._members, self._calm_seconds = members, options.calm
        self._between = 3600 / options.an_hour
        self._random = random.Random(options.seed)
        self._next_at = float("inf")

    def weather(self, is_over: Callable[[], bool], has_begun: Callable[[], bool]) -> float:
        """Keep the members going while things happen, to the end; returns the time of the end."""
        while not is_over():
            now = time.monotonic()
            if not self.begins_at and has_begun():
                self.begins_at = now + self._calm_seconds
                self._next_at = self.begins_at + self._random.expovariate(1 / self._between)
            for member in self._members:
                member.look()
            if now >= self._next_at:
                self._next_at += self._random.expovariate(1 / self._between)
                self._strike()
            time.sleep(LOOK_SECONDS)
        return time.monotonic()

    def size_at(self, at_seconds: float) -> int:
        """Return how many members there were."""
        return [size for at, size in self.sizes if at <= at_seconds][-1]

    @property
    def kills(self) -> list[tuple[str, float]]:
        """The hosts whose members were killed, and when."""
        return [(one.host.name, at) for one in self._members for at in one.kills]

    def _strike(self) -> None:
        [kind] = self._random.choices([*KINDS], [*KINDS.values()])
        seconds = self._random.uniform(*LASTS_SECONDS.get(kind, (0.0, 0.0)))
        *constant, joining = self._members
        free = [one for one in constant if one.heal is None]
        if kind == "join":
            joining.join_or_leave()
            self.sizes.append((time.monotonic(), len(constant) + joining.is_wanted))
        elif free:
            self._random.choice(free).suffer(kind, seconds)
        else:
            return
        self.counts[kind] += 1
        print(f"{time.monotonic() - self.begins_at:6.1f} s: {kind}", file=sys.stderr)


@dataclass(slots=True)
class Outcome:
    """What a system's own words tell: steps that counted, and each round with its members."""

    useful: int = 0
    taken: int = 0
    rounds: dict[int, tuple[float, int]] = field(default_factory=dict)
    steps: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    running: dict[str, int] = field(default_factory=dict)
    model: str = "not repeatable"

    def row(self, storm: Storm, end_seconds: float) -> Row:
        """Return what came of the storm that ended then."""
        back = sorted(self._back_seconds(storm.kills))
        rounds = sorted(self.rounds.values())
        stormy = [(at, count) for at, count in rounds if at >= storm.begins_at]
        calm = [at for at, _ in rounds if at < storm.begins_at]
        lasted = end_seconds - storm.begins_at
        # A calm without two rounds says nothing of their pace.
        round_seconds = (calm[-1] - calm[0]) / (len(calm) - 1) if len(calm) > 1 else float("nan")
        return {
            "seconds": lasted,
            **storm.counts,
            "came_back": len(back),
            "back_seconds": statistics.median(back) if back else None,
            "back_90_seconds": back[int(0.9 * len(back))] if back else None,
            "useful": self.useful / self.taken,
            "members": statistics.mean(count / storm.size_at(at) for at, count in stormy),
            "rounds": len(stormy),
            "pace": len(stormy) / lasted * round_seconds,
            "model": self.model,
        }

    def _back_seconds(self, kills: Sequence[tuple[str, float]]) -> Iterator[float]:
        """Yield for each kill how long it took until its host trained again, if it did."""
        for host, at in kills:
            steps = sorted(self.steps[host])
            if (following := bisect_right(steps, at)) < len(steps):
                yield steps[following] - at


def notes_of(folder: Path, hosts: Sequence[str], trial_steps: int = 0) -> Outcome:
    """Read the members' notes; steps before a member has healed were not from the common state.

    A process of Downpour begins with steps of a trial, some of them under another clock: these are
    taken in vain.
    """
    outcome = Outcome()
    files = [file for file in folder.iterdir() if file.name.split()[0] in hosts]
    for file in sorted(files, key=lambda file: file.stat().st_mtime):
        host, pending, steps = file.name.split()[0], 0, list[float]()
        for at, word, *numbers in map(str.split, file.read_text().splitlines()):
            if word == "step":
                pending += 1
                if float(at) <= time.monotonic():
                    steps.append(float(at))
            elif word == "healed":
                outcome.taken, pending, steps = outcome.taken + pending, 0, []
            else:
                outcome.useful, outcome.taken = outcome.useful + pending, outcome.taken + pending
                pending = 0
                outcome.rounds[int(numbers[0])] = float(at), int(numbers[1])
        outcome.taken += pending
        outcome.steps[host] += steps[trial_steps:]
        outcome.running[host] = pending
    return outcome
