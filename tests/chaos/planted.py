"""Downpour with a defect: `python -m tests.chaos.planted NAME manager …`.

Each defect is one that a change could bring, and `history.py` must find it: a checker that has
never found anything proves nothing. `python -m tests.chaos.partitions --planted` plays all.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from downpour.base.values import AttemptId
from downpour.cli import main as downpour
from downpour.cluster.manager import command_runner, work
from downpour.core.scheduler import dispatch
from downpour.core.scheduler import outputs as out
from downpour.core.scheduler.experiment import Experiment
from downpour.core.scheduler.queue import SchedulerState
from downpour.core.scheduler.round import Round, TaskKey
from downpour.files.store.lease import Lease, Pulse


def lease_not_renewed() -> None:
    """A leader believes that its pulse beats, and it does not."""

    def beat(self: Pulse) -> None:
        self._seen_leading = time.monotonic()

    Pulse._beat = beat  # type: ignore[method-assign]


def fence_not_checked() -> None:
    """A leader does not look whether another one has begun."""
    Lease.is_leader = True  # type: ignore[method-assign,assignment]


def taken_twice() -> None:
    """Now and then an update that has arrived is taken once more."""
    note = SchedulerState.note

    def again(self: SchedulerState, fact: out.Fact) -> None:
        note(self, fact)
        if isinstance(fact, out.Accepted) and fact.attempt.round % 5 == 1:
            note(self, fact)

    SchedulerState.note = again  # type: ignore[method-assign]


def barrier_too_early() -> None:
    """Now and then a version is made without the last update of its round."""
    due = Experiment.due

    def early(self: Experiment, now_seconds: float) -> tuple[TaskKey, ...]:
        keys = due(self, now_seconds)
        return keys[:-1] if len(keys) > 1 and self.version % 5 == 1 else keys

    Experiment.due = early  # type: ignore[method-assign]


def older_base() -> None:
    """Now and then a task begins from the version before."""
    asked = dispatch._asked

    def older(
        state: SchedulerState,
        experiment: Experiment,
        current: Round,
        attempt: AttemptId,
        *rest: Any,
    ) -> out.Assign:
        made = asked(state, experiment, current, attempt, *rest)
        is_due = attempt.round % 5 == 1 and attempt.shard == 1
        older = replace(made.assigned, model=experiment.models[-2]) if is_due else made.assigned
        return replace(made, assigned=older)

    dispatch._asked = older  # type: ignore[assignment]


def nothing_removed() -> None:
    """What only a running experiment needs stays when it has ended."""

    def discard(_self: Any, _command: Any) -> None:
        pass

    command_runner.CommandRunner._discard = discard  # type: ignore[method-assign,assignment]
    work.sweep = lambda *_, **__: None


DEFECTS: dict[str, Callable[[], None]] = {
    plant.__name__: plant
    for plant in (
        lease_not_renewed,
        fence_not_checked,
        taken_twice,
        barrier_too_early,
        older_base,
        nothing_removed,
    )
}


if __name__ == "__main__":
    DEFECTS[sys.argv.pop(1)]()
    downpour()
