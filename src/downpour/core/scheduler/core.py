"""The scheduler: a deterministic state machine with one door, `handle(event) -> Output`.

Results leave as facts, and orders as commands; `commands.py` lists a driver's duties in their
order. This module only passes each event to the right module: `queue`, `rounds`, `dispatch`,
`updates` and `liveness` are functions on one `SchedulerState`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import assert_never

from downpour.base.states import ExperimentState, FailureKind
from downpour.base.values import AttemptId, Progress
from downpour.core.scheduler import commands as do
from downpour.core.scheduler import dispatch, liveness, queue, rounds, updates
from downpour.core.scheduler import events as on
from downpour.core.scheduler.experiment import Experiment
from downpour.core.scheduler.replay import Entry, EntryEvent, Journaled, apply, take_up
from downpour.core.scheduler.state import Output, SchedulerState
from downpour.core.scheduler.updates import aggregate_if_due
from downpour.core.stragglers.base import POLICIES, Policy


class Scheduler:
    """The only way to change a state: through events, or through another scheduler's journal."""

    def __init__(self, patience: float = 1.0, *, policies: Mapping[str, Policy] = POLICIES) -> None:
        self.state = SchedulerState(patience, policies)

    def handle(self, event: on.Event) -> Output:
        """Handle one event; return the facts and commands that follow from it."""
        state = self.state
        state.cause += 1
        # Events come from several threads, so one may have been made before the last one.
        state.now_seconds = max(state.now_seconds, event.at_seconds)
        # Each event gets a new output, because the driver may still be carrying out the last one.
        state.output = Output()
        _take_in(state, event)
        # We check after every event: updates come in many ways, and a grace window ends by time
        # alone.
        if state.active is not None:
            aggregate_if_due(state, state.active)
        # We also ask the policy after every event, because any event may have freed a worker or a
        # shard.
        dispatch.decide(state, event)
        return state.output

    def replay(self, at_seconds: float, entry: Journaled) -> None:
        """Take in the next entry of a journal; skip it if it changes no result.

        After all entries, the state is the same as before (`durable` shows it), except for the
        workers. They must register again.
        """
        # The manager replays experiments one after the other, so the time may seem to go back.
        self.state.now_seconds = max(self.state.now_seconds, at_seconds)
        if isinstance(entry, EntryEvent):
            # The policy's decisions follow as entries. If we asked it again, it might decide
            # differently, because it would see no workers.
            self.state.replaying = True
            self.handle(entry)
            self.state.replaying = False
        elif isinstance(entry, Entry):
            apply(self.state, at_seconds, entry)

    def take_in(self, experiments: Iterable[Experiment], at_seconds: float) -> None:
        """Take in separately replayed experiments, in order of their submission.

        At most one of them has begun and not ended. It becomes the active one; if there is none,
        the first waiting experiment does. The scheduler must be empty.
        """
        self.state.now_seconds = max(self.state.now_seconds, at_seconds)
        take_up(self.state, experiments)
        queue.activate_next(self.state)

    def resume(self) -> Sequence[do.Command]:
        """Continue the active experiment: ask for its dataset, and await its workers.

        A worker that was busy keeps its attempt. The scheduler asks it for nothing before it has
        registered with this manager. If it does not register in time, other workers get its shard.
        """
        state = self.state
        state.output = Output()
        experiment = state.active
        if experiment is None:
            return []
        if experiment.life.state is ExperimentState.RUNNING:
            experiment.ready = False
            # These workers are awaited and not idle. Calls to workers that only the journal knows
            # fail, and each failed call would cost a retry. So one crash of the manager could end
            # the experiment.
            for current in experiment.rounds:
                for attempt, worker in current.holders():
                    state.workers.expect(worker, attempt, state.now_seconds)
        queue.prepare(state, experiment)
        return state.output.commands

    def unwanted(self, worker: str, running: Sequence[Progress]) -> list[AttemptId]:
        """Return the attempts that a worker reports but should not be running."""
        known = self.state.workers.get(worker)
        # A lingering attempt does not count, but may finish, so no message has to stop it.
        wanted = {known.running, known.lingering} if known else set()
        return [progress.attempt for progress in running if progress.attempt not in wanted]


def _take_in(state: SchedulerState, event: on.Event) -> None:  # noqa: C901, PLR0912 - one arm an event
    match event:
        case on.ExperimentSubmitted():
            queue.submitted(state, event)
        case on.ExperimentCancelled():
            queue.cancelled(state, event)
        case on.Prepared():
            rounds.prepared(state, event)
        case on.EffectFailed():
            queue.effect_failed(state, event)
        case on.WorkerJoined():
            liveness.joined(state, event)
        case on.WorkerLeft():
            liveness.gone(state, event.worker, FailureKind.CANCELLED, event.reason, lost=False)
        case on.WorkerLost():
            liveness.gone(state, event.worker, FailureKind.LOST, event.reason, lost=True)
        case on.HeartbeatReceived():
            liveness.heartbeat(state, event)
        case on.UpdatePublished():
            updates.published(state, event)
        case on.HandedOver():
            dispatch.handed_over(state, event)
        case on.Forecasts():
            liveness.forecasts(state, event)
        case on.AttemptFailed():
            updates.attempt_failed(state, event)
        case on.Aggregated():
            rounds.aggregated(state, event)
        case on.AggregationFailed():
            rounds.aggregation_failed(state, event)
        case on.Evaluated():
            rounds.evaluated(state, event)
        case on.ModelPublished():
            queue.model_published(state, event)
        case on.Disturbed():
            queue.disturbed(state, event)
        case on.BlocksRead():
            pass  # for the record
        case on.Tick():
            liveness.tick(state)
        case _:
            assert_never(event)
