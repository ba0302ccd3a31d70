"""The manager is killed at random instants and started again: `python -m tests.chaos.kills`.

Real processes, 1 to 50 workers, each given one shard of every round and one more shard than there
are workers. The script prints for each number of workers: whether the model has the bytes of an
undisturbed run, how many retries the kills have cost (there should be none), and the seconds to the
next assignment, from the kill and from the moment when the next manager serves ("manager at").
Experiments follow each other until there were enough kills.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

from downpour import Client, Spec
from downpour.base.states import BLAMELESS
from downpour.files.store import SharedDirectory
from downpour.record.record import read_record
from downpour.record.record_lines import (
    AssignedLine,
    AttemptFailedLine,
    FailedLine,
    FinishedLine,
    RecordLine,
)
from tests.chaos.stage import PATIENCE_SECONDS, Cluster, Process, undisturbed
from tests.chaos.watching import Watcher, until_next_assignment

WORKERS = 1, 3, 6, 16, 50
KILLS_IN_A_RUN = 5
BETWEEN_KILLS_SECONDS = 0.0, 2.0

say = partial(print, flush=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one experiment whose manager was killed again and again.

    `burned` are the failures that cost a retry. `seconds` (since the kill) and `serving_seconds`
    (since the next manager serves) have an entry for each kill that was followed by an assignment
    before the next kill: the last ones may have come when all was assigned.
    """

    same_bytes: bool
    ending: str
    kills: int
    burned: tuple[AttemptFailedLine, ...]
    seconds: tuple[float, ...]
    serving_seconds: tuple[float, ...]


STEPS = {"compression": "terngrad", "model_compression": "int3"}
"""So that a new manager has to follow the steps between versions."""


def spec_for(workers: int, epochs: int, **fields: Any) -> Spec:
    """Make a spec of more shards than workers, which costs nothing but messages and files."""
    return Spec(shards=workers + 1, epochs=epochs, seed=3, **fields)


def play(spec: Spec, workers: int, kills: int, random: Random, expected: bytes) -> Outcome:
    """Run one experiment, and kill its manager that often, or until it has ended."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        shared = Path(folder)
        cluster = Cluster(shared, stack, workers)
        watcher = stack.enter_context(Watcher(shared))
        with Client(cluster.address, shared=shared) as client:
            experiment = client.submit(spec)
        path = SharedDirectory(shared).experiment_path(experiment)
        struck: list[float] = []
        while len(struck) < kills and _goes_on(watcher, struck, random):
            struck.append(cluster.kill_manager())
        ending = _end(watcher)
        burned = tuple(fact for _, fact in read_record(path / "record.jsonl") if _burns(fact))
        model = path / "model.safetensors"
        began = [manager.first_said_seconds("^manager at ") for manager in cluster.managers[1:]]
        return Outcome(
            same_bytes=model.exists() and model.read_bytes() == expected,
            ending=ending,
            kills=len(struck),
            burned=tuple(fact for fact in burned if isinstance(fact, AttemptFailedLine)),
            seconds=_costs(watcher, struck, struck),
            serving_seconds=_costs(watcher, struck, began),
        )


def _goes_on(watcher: Watcher, struck: Sequence[float], random: Random) -> bool:
    """Wait for an assignment since the last kill, then to a random instant; False at the end."""
    since = struck[-1] if struck else 0.0
    _until(watcher, since, AssignedLine)
    _until(watcher, monotonic(), None, random.uniform(*BETWEEN_KILLS_SECONDS))
    return not _ended(watcher)


def _until(
    watcher: Watcher, since: float, kind: type[RecordLine] | None, seconds: float = PATIENCE_SECONDS
) -> None:
    """Wait until a fact of a kind was seen since then, the experiment has ended, or time is up."""
    deadline = monotonic() + seconds
    while not _ended(watcher) and monotonic() < deadline:
        if kind and any(isinstance(s.fact, kind) and s.at_seconds > since for s in watcher.story):
            return
        watcher.wait(min(0.02, max(0.0, deadline - monotonic())))


def _ended(watcher: Watcher) -> bool:
    return any(isinstance(s.fact, FinishedLine | FailedLine) for s in watcher.story)


def _end(watcher: Watcher) -> str:
    """Wait for the end; returns what was wrong with it."""
    _until(watcher, monotonic(), None)
    last = watcher.story[-1].fact if watcher.story else None
    if isinstance(last, FinishedLine):
        return ""
    return last.reason if isinstance(last, FailedLine) else "it does not end"


def _burns(fact: RecordLine) -> bool:
    return isinstance(fact, AttemptFailedLine) and fact.failure not in BLAMELESS


def _costs(
    watcher: Watcher, struck: Sequence[float], since: Sequence[float | None]
) -> tuple[float, ...]:
    """Return the seconds from each moment to the next assignment before the next kill."""
    deadlines = [*struck[1:], float("inf")]
    costs: list[float] = []
    for began, deadline in zip(since, deadlines, strict=True):
        cost = None if began is None else until_next_assignment(watcher.story, began)
        if began is not None and cost is not None and began + cost < deadline:
            costs.append(cost)
    return tuple(costs)


def measured(
    workers: int, kills: int, epochs: int, seed: int, fields: Mapping[str, Any]
) -> list[Outcome]:
    """Play experiments until there were so many kills."""
    random, outcomes = Random(seed), list[Outcome]()
    spec = spec_for(workers, epochs, **fields)
    with tempfile.TemporaryDirectory() as folder:
        expected = undisturbed(Path(folder), spec)
    while (done := sum(one.kills for one in outcomes)) < kills:
        outcomes.append(play(spec, workers, min(KILLS_IN_A_RUN, kills - done), random, expected))
        if not outcomes[-1].kills:
            raise SystemExit("the experiment ends before the manager can be killed: more --epochs")
    return outcomes


def told(workers: int, outcomes: Sequence[Outcome]) -> str:
    """Say in a line what came of the kills with so many workers, and below it what was wrong."""
    kills = sum(one.kills for one in outcomes)
    burned = [fact for one in outcomes for fact in one.burned]
    same = sum(one.same_bytes for one in outcomes)
    line = f"{workers:2} workers, {kills:3} kills: same bytes in {same} of {len(outcomes)} runs"
    line += f", {len(burned)} retries burned; next assignment"
    line += f" {_spread([second for one in outcomes for second in one.seconds])} after the kill,"
    line += f" {_spread([second for one in outcomes for second in one.serving_seconds])}"
    line += ' after "manager at"'
    wrong = [one.ending for one in outcomes if one.ending]
    wrong += [f"round {f.round} shard {f.shard} on {f.worker}: {f.reason}" for f in burned]
    return "\n".join([line, *(f"    {reason}" for reason in wrong)])


def _spread(seconds: Sequence[float]) -> str:
    if not seconds:
        return "never"
    return f"{statistics.median(seconds):.2f} s (median), {max(seconds):.2f} s (worst)"


def main() -> int:
    """Play all; 1 where something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=WORKERS)
    parser.add_argument("--kills", type=int, default=25, help="for each number of workers")
    parser.add_argument("--epochs", type=int, default=40, help="of each experiment")
    parser.add_argument("--seed", type=int, default=0, help="decides when the manager is killed")
    parser.add_argument("--overlap", type=int, default=0, help="as the spec's field")
    parser.add_argument("--steps", action="store_true", help="versions are steps, in few bytes")
    options = parser.parse_args()
    Process.imports = True
    wrong = 0
    for workers in options.workers:
        fields = {"overlap": options.overlap, **(STEPS if options.steps else {})}
        outcomes = measured(workers, options.kills, options.epochs, options.seed, fields)
        say(told(workers, outcomes))
        wrong += sum(not one.same_bytes or bool(one.burned) for one in outcomes)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
