"""The scheduler: a deterministic state machine with one door, `handle(event) -> Output`.

It decides who trains what, what counts, and when a round is over. It knows no clock, file, socket
or tensor: time comes with the events, what happened leaves as facts, and what is to be done as
commands (`commands.py` says in which order a driver owes them). The same events always give the
same output, so the manager and a simulator drive the same core, and a recorded run can be replayed.
This module only says which module takes in which event: `queue`, `rounds`, `dispatch`, `updates`
and `liveness` are functions on one `SchedulerState`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import assert_never

from downpour.scheduler import commands as do
from downpour.scheduler import dispatch, liveness, queue, rounds, updates
from downpour.scheduler import events as on
from downpour.scheduler.experiment import Experiment
from downpour.scheduler.replay import Entry, EntryEvent, apply, take_up
from downpour.scheduler.state import Output, SchedulerOptions, SchedulerState
from downpour.stragglers import POLICIES, Policy
from downpour.values import AttemptId, ExperimentState, FailureKind, Progress


class Scheduler:
    """The one way to change a state: by events, or by what another scheduler has left behind."""

    def __init__(
        self,
        options: SchedulerOptions | None = None,
        *,
        policies: Mapping[str, Policy] = POLICIES,
    ) -> None:
        self.state = SchedulerState(options, policies)

    def handle(self, event: on.Event) -> Output:
        """Take in one event; returns what has happened, and what must be done because of it."""
        state = self.state
        state.events_handled += 1
        # Because events come from several threads, one may have been made before the last one.
        state.now_seconds = max(state.now_seconds, event.at_seconds)
        state.output = Output()
        _take_in(state, event)
        dispatch.decide(state, event)
        return state.output

    def replay(self, at_seconds: float, entry: Entry) -> None:
        """Take in what was kept; entries come in the order in which they were made.

        The state comes to be the one that was (`durable` shows it), except for the workers, which
        must register again.
        """
        self.state.now_seconds = max(self.state.now_seconds, at_seconds)
        if isinstance(entry, EntryEvent):
            self.state.replaying = True  # because what was decided then comes next, as an entry
            self.handle(entry)
            self.state.replaying = False
        else:
            apply(self.state, at_seconds, entry)

    def take_in(self, experiments: Iterable[Experiment], at_seconds: float) -> None:
        """Take in, while empty, experiments that were replayed each by itself, in their order.

        At most one of them has begun and not ended: it is active, else the first that waits.
        """
        self.state.now_seconds = max(self.state.now_seconds, at_seconds)
        take_up(self.state, experiments)
        queue.activate_next(self.state)

    def resume(self) -> Sequence[do.Command]:
        """Take up the active experiment: ask for its dataset, and expect its workers back.

        A worker that was busy keeps what it held, and is asked for nothing before it has registered
        with this manager. Where it does not in time, others get what it held.
        """
        state = self.state
        state.output = Output()
        experiment = state.active
        if experiment is None:
            return []
        if experiment.life.state is ExperimentState.RUNNING:
            experiment.ready = False
            for attempt, worker in experiment.round.holders() if experiment.round else ():
                state.workers.expect(worker, attempt, state.now_seconds)
        queue.prepare(state, experiment)
        return state.output.commands

    def has_registered(self, worker: str) -> bool:
        """Whether a worker has registered with this manager, and is here."""
        known = self.state.workers.get(worker)
        return known is not None and not known.is_awaited

    def unwanted(self, worker: str, running: Sequence[Progress]) -> list[AttemptId]:
        """Say which of the attempts that a worker reports it should not be running."""
        known = self.state.workers.get(worker)
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
            liveness.joined(state, event.worker, event.running)
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
        case on.Tick():
            liveness.tick(state)
        case _:
            assert_never(event)
