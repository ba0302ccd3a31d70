"""A trainer that trains nothing: the record that it hands back follows from the cell alone."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

from downpour.api import OnStatus
from downpour.rpc.messages import Status
from downpour.runtime.facts import (
    Aggregated,
    Assigned,
    AttemptFailed,
    Evaluated,
    Fact,
    Failed,
    Finished,
    Prepared,
    Submitted,
    Updated,
    to_fields,
)
from downpour.studies.grid import Cell, Grid
from downpour.studies.summary import Summary

GRID = """\
name = "small"
trials = 2
epochs = 2

[[experiment]]
name = "workers"
workers = [1, 2]

[[experiment]]
name = "splits"
workers = 2
split = ["random", "class"]
aggregate = ["average", "first"]
"""


class Interruption(BaseException):
    """As Ctrl-C: nobody catches it."""


@dataclass
class FakeTrainer:
    """Trains in no time; `interrupted_at` are the calls that end with an interruption.

    `hopeless` are cells that come to nothing, `wrong` those whose spec cannot be.
    """

    interrupted_at: set[int] = field(default_factory=set)
    hopeless: set[str] = field(default_factory=set)
    wrong: set[str] = field(default_factory=set)
    trained: list[str] = field(default_factory=list)
    calls: int = 0

    def check(self, grid: Grid) -> None:
        """Every grid will do."""
        assert grid.cells

    def train(self, cell: Cell, on_status: OnStatus) -> bytes:
        """Make a record up, or be interrupted."""
        self.calls += 1
        on_status(Status(change=1))
        if self.calls in self.interrupted_at:
            raise Interruption
        self.trained.append(cell.id)
        wrong = cell.id in self.wrong
        return record_of(cell, failed=wrong or cell.id in self.hopeless, wrong=wrong)


class Silence:
    """A watcher that does not look."""

    def begins(self, cell: Cell, missing: object) -> None:
        """Nothing."""

    def shows(self, status: Status) -> None:
        """Nothing."""

    def ends(self, cell: Cell, summary: Summary) -> None:
        """Nothing."""


def record_of(
    cell: Cell, *, failed: bool = False, wrong: bool = False, lost: bool = False
) -> bytes:
    """Write the record of a cell: accuracies drawn from its identity, seconds from its workers.

    One that failed did so with an attempt that diverged, or whose worker was `lost`.
    """
    facts: list[tuple[float, Fact]] = [(0.0, _submitted(cell)), (0.5, _prepared(cell))]
    if failed:
        if not wrong:
            facts.append((1.0, _attempt_failed("lost" if lost else "non_finite")))
        facts.append((1.0, Failed(reason="no luck", asked_wrongly=wrong)))
    else:
        for number in range(cell.spec.epochs):
            facts += _round(cell, number)
        end = facts[-1][0] + 0.1
        facts.append((end, Finished(file="model.safetensors", total_seconds=end)))
    lines = (json.dumps({"at": at, **to_fields(fact)}) for at, fact in facts)
    return "".join(f"{line}\n" for line in lines).encode()


def _submitted(cell: Cell) -> Submitted:
    return Submitted(
        experiment=f"{cell.spec.name}-{cell.id}",
        name=cell.spec.name,
        spec=cell.spec.model_dump(mode="json"),
        version="0",
        shards=cell.spec.shards or 0,
    )


def _prepared(cell: Cell) -> Prepared:
    shards = cell.spec.shards or 1
    return Prepared(
        train_samples=100,
        test_samples=20,
        classes=3,
        shard_samples=(100 // shards,) * shards,
        prepare_seconds=0.1,
        split_seconds=0.1,
        bytes=1000,
        parameters=250,
    )


def _attempt_failed(failure: str) -> AttemptFailed:
    return AttemptFailed(
        round=0, shard=0, attempt=0, worker="worker-1", failure=failure, reason="no luck"
    )


def _round(cell: Cell, number: int) -> list[tuple[float, Fact]]:
    drawn = random.Random(f"{cell.id} {number}")
    workers, shards = cell.workers or 1, cell.spec.shards or 1
    begin = 1.0 + 10.0 * number
    facts: list[tuple[float, Fact]] = []
    for shard in range(shards):
        worker = f"worker-{1 + shard % workers}"
        at = begin + shard / workers
        given: dict[str, Any] = {"round": number, "shard": shard, "attempt": 0, "worker": worker}
        facts.append((at, Assigned(**given, reason="the first idle worker")))
        facts.append((at + 0.9, _updated(given)))
    seconds = 8.0 / workers + drawn.random()
    facts.sort(key=lambda fact: fact[0])
    classes = tuple(drawn.random() for _ in range(3))
    aggregated = Aggregated(
        round=number,
        version=number + 1,
        file="model",
        bytes=1000,
        seconds=0.01,
        train_seconds=seconds,
        loss=drawn.random(),
    )
    evaluated = Evaluated(
        round=number,
        accuracy=sum(classes) / 3,
        loss=drawn.random(),
        class_accuracy=classes,
        seconds=0.2,
    )
    return [*facts, (begin + 9.0, aggregated), (begin + 9.5, evaluated)]


def _updated(given: dict[str, Any]) -> Updated:
    return Updated(
        **given,
        samples=50,
        steps=2,
        loss=0.5,
        load_seconds=0.01,
        train_seconds=0.8,
        publish_seconds=0.01,
        completion_seconds=0.9,
        bytes=1000,
    )
