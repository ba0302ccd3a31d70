"""Counts events since this manager started, for its metrics. No decision depends on a count.

There is one set of counters for all experiments. The driver's thread owns it; other threads read it
through `Driver.ask`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from downpour.base.states import FailureKind
from downpour.core.scheduler import commands as do
from downpour.core.scheduler import events as on
from downpour.core.scheduler import facts
from downpour.network.metrics import Timing

COUNTED = "counted"
ENDS = (COUNTED, *map(str, FailureKind))
"""How attempts end: their update counts, or they fail for one of these reasons."""


@dataclass(slots=True)
class Counters:
    """Attempts `assigned`, and `ended` by how they ended; shards that were `dropped`.

    `snapshots` counts the published states of tasks, and `contradicted` the updates that differ
    from the one that counts. `training` holds the time of each round, from its first assignment to
    its last update.
    """

    assigned: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    snapshots: int = 0
    dropped: int = 0
    contradicted: int = 0
    training: Timing = field(default_factory=Timing)
    aggregation: Timing = field(default_factory=Timing)
    evaluation: Timing = field(default_factory=Timing)
    _aggregating: dict[str, tuple[float, do.Aggregate]] = field(default_factory=dict)

    def begin(self, at_seconds: float, command: do.Aggregate) -> None:
        """Note that an aggregation begins; it counts once it has ended."""
        self._aggregating[command.experiment] = at_seconds, command

    def take(self, happened: on.Event | facts.Fact) -> None:
        """Count an event or a fact."""
        match happened:
            case facts.Assigned():
                self.assigned += 1
            case facts.Accepted():
                self.ended[COUNTED] += 1
            case facts.GivenUp():
                self.ended[happened.failure] += 1
            case facts.Saved():
                self.snapshots += 1
            case facts.Dropped():
                self.dropped += len(happened.shards)
            case facts.Contradicted():
                self.contradicted += 1
            case on.Aggregated() if happened.experiment in self._aggregating:
                began, command = self._aggregating.pop(happened.experiment)
                self.training.add(command.train_seconds)
                self.aggregation.add(happened.at_seconds - began)
            case on.Evaluated():
                self.evaluation.add(happened.evaluation.seconds)
            case facts.Concluded():
                self._aggregating.pop(happened.experiment, None)
            case _:
                pass
