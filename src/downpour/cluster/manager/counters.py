"""Counts what is recorded since this manager started, for its metrics; nothing is decided from it.

There is one set of counters for all experiments. The driver's thread owns it; other threads read it
through `Driver.ask`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from downpour.base.states import FailureKind
from downpour.files.records.record_lines import (
    AggregatedLine,
    AssignedLine,
    AttemptFailedLine,
    ContradictedLine,
    DroppedLine,
    EvaluatedLine,
    RecordLine,
    SavedLine,
    UpdatedLine,
)
from downpour.network.metrics import Timing

COUNTED = "counted"
ENDS = (COUNTED, *map(str, FailureKind))
"""How attempts end: their update counts, or they fail for one of these reasons."""


@dataclass(slots=True)
class Counters:
    """Attempts `assigned`, and `ended` by how they ended; shards that were `dropped`.

    `snapshots` counts the published states of tasks, `contradicted` the updates that differ from
    the one that counts. `training` is timed by round, from its first assignment to its last update.
    """

    assigned: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    snapshots: int = 0
    dropped: int = 0
    contradicted: int = 0
    training: Timing = field(default_factory=Timing)
    aggregation: Timing = field(default_factory=Timing)
    evaluation: Timing = field(default_factory=Timing)

    def take(self, fact: RecordLine) -> None:
        """Count one line of a record."""
        match fact:
            case AssignedLine():
                self.assigned += 1
            case UpdatedLine():
                self.ended[COUNTED] += 1
            case AttemptFailedLine():
                self.ended[fact.failure] += 1
            case SavedLine():
                self.snapshots += 1
            case DroppedLine():
                self.dropped += len(fact.shards)
            case ContradictedLine():
                self.contradicted += 1
            case AggregatedLine():
                self.training.add(fact.train_seconds)
                self.aggregation.add(fact.seconds)
            case EvaluatedLine():
                self.evaluation.add(fact.seconds)
            case _:
                pass
