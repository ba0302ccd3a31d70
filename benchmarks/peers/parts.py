"""The measurements of a peer: its runs, and the columns computed from them.

- `trained`: two epochs with two processes (`plain` has one). `first_batch_seconds` runs from the
  command to the end of the first step, and `epoch_seconds` is one epoch from the first step on.
  `accuracy_percent` is measured after both epochs, on 2,000 test images. `memory_mb` is the most
  that all processes held together; shared pages count once. `user_seconds` is their processor time
  from the command to its end; it misses up to a quarter of a second of each process.
- `rounds`: `round_ms`, a round of two processes that have trained nothing, with 4.8 MB.
- `ten`: `ten_round_ms`, the same with ten processes; `large`: `large_round_ms`, four, 100 MB.
- `slow`: `slow_epoch_seconds`, an epoch in which one of two workers runs a quarter of the time.
- `target`: `target_seconds`, from the command to 97 % after an epoch of 10,000 images.
- `deaths`: `after_kill` says what a `kill -9` of one worker after the first epoch leads to.
  `after_coordinator_kill` does the same for the process that the command started: a driver, a
  launcher, or Downpour's manager with its caller. The table states what a system keeps; no run
  measures it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from common import Row

from peers.known import Peer
from peers.running import Ran, Way

TARGET = 0.97
DEATH_EPOCHS = 4
"""Of a run in which a process is killed."""

Columns = Callable[[Peer, Sequence[Ran]], Row]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What is measured: how a peer is run, what is made of its runs, and whether once is enough.

    `of_many` tells that there is nothing to measure of a single process.
    """

    ways: tuple[Way, ...]
    columns: Columns
    once: bool = True
    of_many: bool = True


def parts(examples: int) -> Mapping[str, Part]:
    """Return what can be measured, by name; an epoch has so many examples."""
    few = ("--examples", str(examples))
    dying = (*few, "--epochs", str(DEATH_EPOCHS))
    many = ("--examples", "10000", "--epochs", "15", "--look")
    return {
        "trained": Part(
            ways=(Way(words=few, weighed=True),), columns=of_training, once=False, of_many=False
        ),
        "rounds": Part(
            ways=(Way(words=("--rounds", "30")),),
            columns=of_rounds("round_ms"),
            once=False,
            of_many=False,
        ),
        "ten": Part(
            ways=(Way(words=("--rounds", "12"), workers=10, patience_seconds=300.0),),
            columns=of_rounds("ten_round_ms"),
        ),
        "large": Part(
            ways=(Way(words=("--rounds", "9", "--large"), workers=4, patience_seconds=300.0),),
            columns=of_rounds("large_round_ms"),
        ),
        "slow": Part(ways=(Way(words=few, slow=True),), columns=of_slow),
        "target": Part(
            ways=(Way(words=many, until=TARGET, patience_seconds=400.0),),
            columns=of_target,
            of_many=False,
        ),
        "deaths": Part(
            ways=(Way(words=dying, kills="worker"), Way(words=dying, kills="first")),
            columns=of_deaths,
        ),
    }


def of_training(_: Peer, runs: Sequence[Ran]) -> Row:
    """Return what an undisturbed training took."""
    starts = [at - ran.began for ran in runs if (at := ran.first("first")) is not None]
    ends = [one["accuracy"] for ran in runs for one in ran.events if "accuracy" in one]
    return {
        "first_batch_seconds": median(starts),
        "epoch_seconds": median(_epochs(runs)),
        "accuracy_percent": 100 * ends[0] if ends else None,
        "memory_mb": median([ran.memory_mb for ran in runs]),
        "user_seconds": median([ran.user_seconds for ran in runs]),
    }


def of_rounds(column: str) -> Columns:
    """Return how to tell what a meeting took."""

    def told(_: Peer, runs: Sequence[Ran]) -> Row:
        said = [one for ran in runs for one in ran.events if one["event"] == "rounds"]
        return {column: median([one["milliseconds"] for one in said])}

    return told


def of_slow(_: Peer, runs: Sequence[Ran]) -> Row:
    """Return what an epoch took with a slow worker."""
    return {"slow_epoch_seconds": median(_epochs(runs))}


def of_target(_: Peer, runs: Sequence[Ran]) -> Row:
    """Return how long it took from the command to the accuracy that was wanted."""
    times = [
        next((one["at"] for one in ran.events if one.get("accuracy", 0) >= TARGET), None)
        for ran in runs
    ]
    took = [at - ran.began for at, ran in zip(times, runs, strict=True) if at is not None]
    return {"target_seconds": median(took)}


def of_deaths(peer: Peer, runs: Sequence[Ran]) -> Row:
    """Return what the death of a worker and of the first process led to."""
    columns = ("after_kill", "after_coordinator_kill")
    return {name: after_kill(ran, peer.kept) for name, ran in zip(columns, runs, strict=True)}


def after_kill(ran: Ran, kept: str = "loses everything") -> str:
    """Say what a process's death led to; a run that reported every epoch has continued."""
    at = ran.first("killed")
    if at is None:
        return "no worker is known"
    epochs = [one["at"] - at for one in ran.events if one["event"] == "epoch"]
    later = [seconds for seconds in epochs if seconds > 0]
    if later and (ran.status == 0 or len(epochs) >= DEATH_EPOCHS):
        return f"continues {_with_whom(ran, at)}: next epoch after {later[0]:.1f} s"
    if ran.hung:
        return "hangs"
    return f"stops after {ran.ended - at:.1f} s and {kept}"


def _with_whom(ran: Ran, at: float) -> str:
    """Say whether a new worker replaced the killed one."""
    workers = [one for one in ran.events if one["event"] == "worker"]
    before = {one["pid"] for one in workers if one["at"] <= at}
    replaced = any(one["pid"] not in before for one in workers)
    return "with a new worker" if replaced else "with the remaining workers"


def _epochs(runs: Sequence[Ran]) -> list[float]:
    """Return what an epoch took in each run that came to the end of one."""
    seconds = []
    for ran in runs:
        first = ran.first("first")
        ends = [one["at"] for one in ran.events if one["event"] == "epoch"]
        if first is not None and ends:
            seconds.append((ends[-1] - first) / len(ends))
    return seconds


def median(numbers: Sequence[float]) -> float | None:
    """Return the median of what was measured, if anything was."""
    return round(statistics.median(numbers), 3) if numbers else None
