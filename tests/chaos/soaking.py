"""A long experiment on the hosts of a lab, with a kill or a cut every few seconds.

`python -m tests.chaos.soaking --rounds 10000` trains next to nothing in each round, so that almost
all the time goes to what Downpour itself does. Then the checker of `history.py` reads the journal.
Goodput is told twice: attempts whose update was taken over all attempts, and by the clock, as the
pace of rounds until the first kill over that of all rounds.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from time import monotonic

from tests.chaos.cuts import CLIENT, WORKERS, Schedule, Trouble
from tests.chaos.field import Field
from tests.chaos.history import done_in_vain, violations
from tests.lab.failing import NoLab
from tests.lab.lab import Lab

say = partial(print, flush=True)
_PATIENCE_SECONDS = 120.0

CUTS: tuple[Callable[[float], Trouble], ...] = (
    lambda s: Trouble(kind="cut", who="worker", seconds=1 + 5 * s),
    lambda s: Trouble(kind="cut", who="worker", from_="store", seconds=1 + 5 * s),
    lambda s: Trouble(kind="cut", who="leader", from_="worker", seconds=1 + 5 * s),
    lambda s: Trouble(kind="cut", who="leader", from_="workers", seconds=1 + 5 * s),
    lambda s: Trouble(kind="cut", who="leader", from_="store", seconds=1 + 3 * s),
)
"""Given how long, from 0 to 1: too short for a successor to take over, which kills are for."""


def spec(rounds: int) -> tuple[str, ...]:
    """Return the options of an experiment whose tasks are one step of one image."""
    fields = {
        "dataset": "digits",
        "train-limit": 2,
        "test-limit": 10,
        "model": "mlp",
        "shards": 2,
        "epochs": rounds,
        "batch-size": 1,
        "local-steps": 1,
        "evaluate-every": 0,
        "retries": 1000,
        "seed": 3,
    }
    return tuple(word for name, value in fields.items() for word in (f"--{name}", str(value)))


class Soak:
    """One long experiment, and what happens to it."""

    def __init__(self, field: Field, rounds: int, every_seconds: float, random: Random) -> None:
        self._field, self._rounds, self._every_seconds = field, rounds, every_seconds
        self._random = random
        self._began = monotonic()
        self.kills, self.cuts = 0, 0
        self.calm_pace, self.pace = 0.0, 0.0
        self._reached, self._reached_at = 0, self._began

    def play(self) -> None:
        """Submit it, disturb it, and wait for its end."""
        self._field.submit(*spec(self._rounds))
        while not self._newest():
            self._field.look()
        self._began = monotonic()
        while not self._has_ended():
            due = monotonic() + self._every_seconds
            while monotonic() < due and not self._has_ended():
                self._field.look()
            self.calm_pace = self.calm_pace or self._pace(self._newest())
            if not self._has_ended():
                self._strike()
        self.pace = self._pace(self._rounds)

    def _strike(self) -> None:
        choice = self._random.random()
        if choice < 0.25:
            self._kill(self._field.leader)
        elif choice < 0.5:
            self._kill(self._random.choice(WORKERS))
        else:
            self.cuts += 1
            self._field.endure(self._random.choice(CUTS)(self._random.random()))

    def _kill(self, host: str) -> None:
        self.kills += 1
        self._field.kill(host)

    def _newest(self) -> int:
        names = [path.name for path in self._field.folder.glob("model-[0-9]*")]
        return max((int(name.split("-")[1]) for name in names), default=0)

    def _pace(self, rounds: int) -> float:
        return rounds / (monotonic() - self._began)

    def _has_ended(self) -> bool:
        """Whether it has; raises NoLab where no round has ended for long, as after a failure."""
        if (newest := self._newest()) != self._reached:
            self._reached, self._reached_at = newest, monotonic()
        if monotonic() - self._reached_at > _PATIENCE_SECONDS:
            raise NoLab(f"no round has ended for {_PATIENCE_SECONDS:.0f} s, after {newest}")
        return (self._field.folder / "model.safetensors").exists()


def main() -> int:
    """Soak; 1 where something was wrong, whose files are kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--every", type=float, default=20.0, help="seconds from one to the next")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    kept = Path(tempfile.mkdtemp(prefix="soaking-")) / "shared"
    with Lab("switch", hosts=int(CLIENT[2:]), shared="folder") as lab:
        field = Field(lab, "folder", Schedule(troubles=(), skewed={}))
        soak = Soak(field, options.rounds, options.every, Random(options.seed))
        try:
            field.begin()
            soak.play()
        finally:
            field.close()
            field.keep(kept)
    wrong = violations(kept, field.experiment, terms_max=1 + 2 * (soak.kills + soak.cuts))
    attempts, in_vain = done_in_vain(kept / "experiments" / field.experiment)
    row = {
        "rounds": options.rounds,
        "kills": soak.kills,
        "cuts": soak.cuts,
        "attempts": attempts,
        "goodput": (attempts - in_vain) / attempts,
        "rounds_per_second": soak.pace,
        "calm_rounds_per_second": soak.calm_pace,
        "goodput_by_the_clock": soak.pace / soak.calm_pace,
        "wrong": wrong,
    }
    say(json.dumps(row, indent=2))
    if wrong:
        say(f"its files: {kept}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
