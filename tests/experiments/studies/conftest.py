"""A backend that trains nothing: the record that it returns follows from the run alone.

A grid's accuracies are drawn from the run's identity; a search's follow from its values, and are
best at a learning rate of 0.03.
"""

import io
import json
import math
import random
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from downpour.experiments.client import OnStatus
from downpour.experiments.studies import Grid, Run, Search, StudyFolder, StudySpec
from downpour.experiments.studies.running import StudyDisplay, Train, measured_in
from downpour.experiments.studies.study import OnEpoch
from downpour.network.rpc.messages import Status
from downpour.record import record_lines as told
from downpour.record.tables import Tables
from downpour.record.view import to_fields
from tests.record import lines as made

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
SEARCH = """\
name = "small"
workers = 2
epochs = 4

[search]
trials = 12
pruner = { name = "median", startup_trials = 3 }
learning_rate = { low = 0.0001, high = 1.0, log = true }
batch_size = [16, 32]
local_steps = { low = 1, high = 50 }
"model_options.dropout" = { low = 0.0, high = 0.5 }
model_options.width = [[8], [8, 8]]
"""


def grid_folder(path: Path, text: str = GRID) -> StudyFolder[Grid]:
    """Name the folder of a grid."""
    return StudyFolder(path / "small", Grid.from_toml(text))


def search_folder(path: Path, text: str = SEARCH) -> StudyFolder[Search]:
    """Name the folder of a search."""
    return StudyFolder(path / "small", Search.from_toml(text))


class Interruption(BaseException):
    """As Ctrl-C: nothing catches it."""


@dataclass
class FakeBackend:
    """Trains in no time; `interrupted_at` are the calls that end with an interruption.

    `hopeless` are the calls, or the names of runs, that fail; `wrong` those whose spec is invalid,
    `unlucky` those whose workers die, `stolen` the calls whose run another client cancels. `late`
    is how many epochs a run that should end goes on.
    """

    interrupted_at: set[int] = field(default_factory=set)
    hopeless: Collection[int | str] = ()
    wrong: Collection[int | str] = ()
    unlucky: Collection[int | str] = ()
    stolen: Collection[int | str] = ()
    late: int = 0
    trained: list[Run] = field(default_factory=list)
    epochs: int = 0
    starts: int = 0
    calls: int = 0

    @property
    def names(self) -> list[str]:
        """Name the runs that were trained."""
        return [run.name for run in self.trained]

    def check(self, study: StudySpec) -> None:
        assert next(study.samples())

    @contextmanager
    def start(self, study: StudySpec) -> Iterator[Train]:
        assert study.name
        self.starts += 1
        yield self.train

    def train(self, run: Run, on_status: OnStatus, on_epoch: OnEpoch | None) -> bytes:
        """Make a record up, or be interrupted in the middle of it."""
        self.calls += 1
        on_status(Status(change=1))
        if self.calls in self.interrupted_at:
            raise Interruption
        wrong, unlucky = self._is(self.wrong, run), self._is(self.unlucky, run)
        failed = wrong or unlucky or self._is(self.hopeless, run)
        stolen = self._is(self.stolen, run)
        lines: list[str] = []
        tables = Tables()
        left: float = math.inf
        for line in lines_of(run, failed=failed, wrong=wrong, lost=unlucky):
            lines.append(line)
            for epoch, measured in measured_in(lines[-1:], tables):
                self.epochs += 1
                left = min(left - 1, self.late) if left < math.inf else left
                if left == math.inf and on_epoch is not None and on_epoch(epoch, measured):
                    left = self.late
            if left <= 0 or (stolen and len(lines) == 3):
                lines.append(
                    json.dumps({"at": 99.0, **to_fields(told.CancelledLine(reason="cancelled"))})
                )
                break
        if not stolen:
            self.trained.append(run)
        return "".join(f"{line}\n" for line in lines).encode()

    def _is(self, chosen: Collection[int | str], run: Run) -> bool:
        return self.calls in chosen or run.name in chosen


class Silence(StudyDisplay):
    """A display that nobody sees."""

    def __init__(self) -> None:
        super().__init__(Console(file=io.StringIO()), lambda _: None)


def final_accuracy(run: Run) -> float:
    """Say how good a run of a search becomes."""
    far = (math.log10(run.spec.learning_rate / 0.03) / 4) ** 2
    return 0.9 - 0.5 * far - (0.05 if run.spec.batch_size == 16 else 0.0)


def lines_of(
    run: Run, *, failed: bool = False, wrong: bool = False, lost: bool = False
) -> list[str]:
    """Write the lines of a run's record; a search's accuracies come near the final one."""
    lines = record_of(run, failed=failed, wrong=wrong, lost=lost).decode().splitlines()
    if run.number is None:
        return lines
    facts = [json.loads(line) for line in lines]
    for fact in facts:
        if fact["kind"] == "measured":
            accuracy = final_accuracy(run) * (1 - 0.5 ** (fact["round"] + 1))
            fact |= {"metrics": {"accuracy": accuracy}, "loss": 1 - accuracy}
    return [json.dumps(fact) for fact in facts]


def record_of(run: Run, *, failed: bool = False, wrong: bool = False, lost: bool = False) -> bytes:
    """Write the record of a run: accuracies drawn from its identity, seconds from its workers.

    One that failed did so with an attempt that diverged, or whose worker was `lost`.
    """
    shards = run.spec.shards or 1
    prepared = made.prepared(*(100 // shards,) * shards, classes=3)
    facts: list[told.Dated] = [(0.0, _submitted(run)), (0.5, prepared)]
    if failed:
        if not wrong:
            failure = "lost" if lost else "non_finite"
            facts.append((1.0, made.failed(0, failure=failure, reason="no luck")))
        facts.append((1.0, told.FailedLine(reason="no luck", asked_wrongly=wrong)))
    else:
        for number in range(run.spec.epochs):
            facts += _round(run, number)
        end = facts[-1][0] + 0.1
        facts.append((end, made.finished(end)))
    lines = (json.dumps({"at": at, **to_fields(fact)}) for at, fact in facts)
    return "".join(f"{line}\n" for line in lines).encode()


def _submitted(run: Run) -> told.SubmittedLine:
    return told.SubmittedLine(
        experiment=f"{run.spec.name}-{run.id}",
        name=run.spec.name,
        spec=run.spec.model_dump(mode="json"),
        version="0",
        shards=run.spec.shards,
    )


def _round(run: Run, number: int) -> list[told.Dated]:
    drawn = random.Random(f"{run.id} {number}")
    workers, shards = run.workers or 1, run.spec.shards or 1
    begin = 1.0 + 10.0 * number
    facts: list[told.Dated] = []
    for shard in range(shards):
        worker = f"worker-{1 + shard % workers}"
        at = begin + shard / workers
        facts.append((at, made.assigned(shard, worker=worker, round=number)))
        facts.append((at + 0.9, made.updated(shard, worker=worker, round=number)))
    seconds = 8.0 / workers + drawn.random()
    facts.sort(key=lambda fact: fact[0])
    classes = tuple(drawn.random() for _ in range(3))
    aggregated = made.aggregated(number, train_seconds=seconds, loss=drawn.random())
    measured = made.measured(number, drawn.random(), *classes)
    return [*facts, (begin + 9.0, aggregated), (begin + 9.5, measured)]
