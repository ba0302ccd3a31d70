"""The scheduler's whole state, and the few operations that several modules share.

The functions in `queue`, `rounds`, `dispatch`, `updates` and `liveness` read and change a
`SchedulerState`, and add facts and commands to its output. The state itself decides nothing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from downpour.base.values import AttemptId, PublishedFile
from downpour.core.scheduler import commands as do
from downpour.core.scheduler.experiment import Experiment
from downpour.core.scheduler.facts import Fact, ForecastRecorded
from downpour.core.scheduler.round import Round, ShardTask
from downpour.core.scheduler.workers import Worker, Workers
from downpour.core.stragglers.base import POLICIES, Policy

# `status` and `watch` show these; the record has the facts of all decisions.
_DECISIONS_KEPT = 12


class TaskContext(NamedTuple):
    """The task of an attempt, with its round and its experiment."""

    experiment: Experiment
    round: Round
    task: ShardTask


class Decision(NamedTuple):
    """A decision about an experiment in words, and its time; not for plain assignments."""

    at_seconds: float
    experiment: str
    text: str


@dataclass(frozen=True, slots=True)
class Output:
    """The result of an event: facts and commands, both in order."""

    commands: list[do.Command] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)


class SchedulerState:
    """All experiments and workers; one experiment is active, the others wait in submission order.

    `patience` scales every timeout (`lifecycle.py`). At 1, a worker that has sent too few
    heartbeats to learn from counts as lost after 10 s without one. An assignment counts as not
    received if the worker does not mention it for 10 s.

    `policies` are the policies that a spec can name. While the state is `replaying` we ask no
    policy, because the decisions come from a journal. From `look_again_at_seconds` on, a heartbeat
    leads to a new decision of a policy that watches. Before `crowded_until_seconds`, we ask it only
    if a shard and a worker wait. A policy last requested a worker at
    `asked_for_workers_at_seconds`. `decisions` are the last few, for people to read; the scheduler
    doesn't use them.
    """

    def __init__(self, patience: float = 1.0, policies: Mapping[str, Policy] = POLICIES) -> None:
        self.patience = patience
        self.policies = policies
        self.workers = Workers()
        self.experiments: dict[str, Experiment] = {}
        self.active: Experiment | None = None
        self.cause = 0  # the number of the event that it handles
        self.now_seconds = 0.0
        # Two numbers, because a requested worker looks like any other when it joins.
        self.wanted_workers = 0
        self.joined_since = 0
        self.replaying = False
        self.look_again_at_seconds = 0.0
        self.crowded_until_seconds = 0.0
        self.asked_for_workers_at_seconds = -math.inf
        self.output = Output()
        self.decisions: deque[Decision] = deque(maxlen=_DECISIONS_KEPT)

    def do(self, command: do.Command) -> None:
        """Ask the driver for something."""
        self.output.commands.append(command)

    def note(self, fact: Fact) -> None:
        """Add a fact to the output."""
        self.output.facts.append(replace(fact, cause=self.cause))

    def log(self, text: str) -> None:
        """Log a line about the active experiment, for users who watch it."""
        if self.active is not None:
            self.decided(self.active.name, text)

    def decided(self, experiment: str, text: str) -> None:
        """Log a line about an experiment, for users who watch it."""
        self.decisions.append(Decision(self.now_seconds, experiment, text))

    def active_as(self, name: str) -> Experiment | None:
        """Return the experiment of that name if it is the active one."""
        return self.active if self.active is not None and self.active.name == name else None

    def find(self, attempt: AttemptId) -> TaskContext | None:
        """Return the task of an attempt, or None if no open round has it."""
        experiment = self.active_as(attempt.experiment)
        current = experiment.round_of(attempt.round) if experiment else None
        task = current.find(attempt) if current else None
        if experiment is None or current is None or task is None:
            return None
        return TaskContext(experiment, current, task)

    def discard(self, experiment: str, files: tuple[PublishedFile, ...]) -> None:
        """Ask the driver to remove files, if there are any."""
        if files:
            self.do(do.Discard(experiment=experiment, files=files))

    def exclude(self, worker: str, experiment: Experiment, reason: str) -> None:
        """Assign no more tasks of the active experiment to a worker that cannot train it."""
        self.workers.exclude(worker, reason)
        self.decided(experiment.name, f"no more tasks for {worker}: {reason}")

    def cancel(self, worker: Worker, reason: str) -> None:
        """Free a worker from its attempt, if it has one, and ask it to stop."""
        attempt = worker.running
        if attempt is not None and self.workers.release(worker.name, attempt):
            self.do(do.Cancel(worker=worker.name, attempt=attempt, reason=reason))

    def record_forecast(self, worker: Worker) -> None:
        """Record the forecast of a worker's update, if it has a new one."""
        context = self.find(worker.running) if worker.running is not None else None
        if worker.remaining is None or worker.forecast == worker.recorded_forecast:
            return
        if context is not None and worker.running is not None:
            worker.recorded_forecast = worker.forecast
            began = context.task.began_at[worker.running.attempt]
            self.note(
                ForecastRecorded(
                    worker=worker.name,
                    attempt=worker.running,
                    done=worker.progress.share if worker.progress is not None else began,
                    elapsed_seconds=worker.stepped_seconds,
                    remaining=worker.remaining,
                )
            )
