"""A trainer that trains nothing: accuracies follow from a trial's values alone, best at 0.03."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from downpour.api import OnStatus
from downpour.rpc.messages import Status
from downpour.runtime.facts import Cancelled, to_fields
from downpour.studies.grid import Cell
from downpour.studies.search import Search
from downpour.studies.search_backends import OnEpoch, Train, accuracies_in
from downpour.studies.search_folder import Folder
from tests.studies.conftest import Interruption, record_of

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


def search_of(text: str = SEARCH) -> Search:
    """Read a search."""
    return Search.from_toml(text)


def folder_in(path: Path, text: str = SEARCH) -> Folder:
    """Name the folder of a search."""
    return Folder(path / "small", search_of(text))


def final_accuracy(cell: Cell) -> float:
    """Say how good a trial becomes."""
    spec = cell.spec
    far = (math.log10(spec.learning_rate / 0.03) / 4) ** 2
    return 0.9 - 0.5 * far - (0.05 if spec.batch_size == 16 else 0.0)


def told_by(
    cell: Cell, *, failed: bool = False, wrong: bool = False, lost: bool = False
) -> list[str]:
    """Write the record of a trial, whose accuracies come near the final one."""
    lines = []
    for line in record_of(cell, failed=failed, wrong=wrong, lost=lost).decode().splitlines():
        fact = json.loads(line)
        if fact["kind"] == "evaluated":
            fact["accuracy"] = final_accuracy(cell) * (1 - 0.5 ** (fact["round"] + 1))
        lines.append(json.dumps(fact))
    return lines


@dataclass
class FakeTrainer:
    """Trains in no time; `interrupted_at` are the calls that end with an interruption.

    `late` is how many epochs go by before a trial that should end does. `hopeless` are the calls
    whose trial fails, `wrong` those whose spec cannot be, `unlucky` those whose workers die,
    `stolen` those whose trial somebody else cancels.
    """

    interrupted_at: set[int] = field(default_factory=set)
    hopeless: set[int] = field(default_factory=set)
    wrong: set[int] = field(default_factory=set)
    unlucky: set[int] = field(default_factory=set)
    stolen: set[int] = field(default_factory=set)
    late: int = 0
    trained: list[Cell] = field(default_factory=list)
    epochs: int = 0
    starts: int = 0
    calls: int = 0

    def check(self, search: Search) -> None:
        """Every search will do."""
        assert search.axes

    @contextmanager
    def start(self, search: Search) -> Iterator[Train]:
        """Start nothing."""
        assert search.axes
        self.starts += 1
        yield self.train

    def train(self, cell: Cell, on_status: OnStatus, on_epoch: OnEpoch) -> bytes:
        """Make a record up, or be interrupted in the middle of it."""
        self.calls += 1
        on_status(Status(change=1))
        wrong = self.calls in self.wrong
        told: list[str] = []
        left: float = math.inf
        unlucky = self.calls in self.unlucky
        failed = wrong or unlucky or self.calls in self.hopeless
        for line in told_by(cell, failed=failed, wrong=wrong, lost=unlucky):
            told.append(line)
            for epoch, accuracy in accuracies_in([line]):
                self.epochs += 1
                if self.calls in self.interrupted_at:
                    raise Interruption
                left = min(left - 1, self.late) if left < math.inf else left
                if left == math.inf and on_epoch(epoch, accuracy):
                    left = self.late
            if left <= 0 or (self.calls in self.stolen and len(told) == 3):
                told.append(json.dumps({"at": 99.0, **to_fields(Cancelled(reason="cancelled"))}))
                break
        if self.calls not in self.stolen:
            self.trained.append(cell)
        return "".join(f"{line}\n" for line in told).encode()


class Silence:
    """A watcher that does not look."""

    def begins(self, number: int, cell: Cell) -> None:
        """Nothing."""

    def shows(self, status: Status) -> None:
        """Nothing."""

    def ends(self, trial: object) -> None:
        """Nothing."""
