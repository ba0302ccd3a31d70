"""The scheduler: a deterministic state machine with one door, `handle(event) -> list[Command]`.

It decides who trains what, what counts, and when a round is over. It knows no clock, file, socket
or tensor: time comes with the events, effects leave as commands (`commands.py` says in which order
a driver owes them). The same events always give the same commands, so the manager and a simulator
drive the same core, and a recorded run can be replayed. Here is only who hears of what; `turns`,
`contributions`, `directing`, `rounds` and `attendance` act on the same `books`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from downpour.scheduler import commands as do
from downpour.scheduler import events as on
from downpour.scheduler.attendance import Attendance
from downpour.scheduler.books import Books, SchedulerOptions
from downpour.scheduler.contributions import Contributions
from downpour.scheduler.directing import Directing
from downpour.scheduler.rounds import Rounds
from downpour.scheduler.turns import Turns
from downpour.values import AttemptId, FailureKind, Progress


class Scheduler(Books):
    """The books, and the door through which whatever happens comes in."""

    def __init__(self, options: SchedulerOptions | None = None) -> None:
        super().__init__(options)
        self.turns = Turns(self)
        self.contributions = Contributions(self, self.turns)
        self.directing = Directing(self, self.contributions)
        self.rounds = Rounds(self, self.turns, self.contributions, self.directing)
        self.attendance = Attendance(self, self.contributions)

    def handle(self, event: on.Event) -> list[do.Command]:
        """Take in one event; returns what must be done because of it, in order."""
        self.events_handled += 1
        self.now_seconds = max(self.now_seconds, event.at_seconds)
        self.commands = []
        self._dispatch(event)
        self.directing.decide(event)
        return self.commands

    def has_registered(self, worker: str) -> bool:
        """Whether a worker has registered with this manager, and is here."""
        known = self.workers.get(worker)
        return known is not None and not known.is_awaited

    def unwanted(self, worker: str, running: Sequence[Progress]) -> list[AttemptId]:
        """Say which of the attempts that a worker reports it should not be running."""
        known = self.workers.get(worker)
        wanted = {known.running, known.lingering} if known else set()
        return [progress.attempt for progress in running if progress.attempt not in wanted]

    def _dispatch(self, event: on.Event) -> None:  # noqa: C901, PLR0912 - one arm an event
        match event:
            case on.ExperimentSubmitted():
                self.turns.submitted(event)
            case on.ExperimentCancelled():
                self.turns.cancelled(event)
            case on.Prepared():
                self.rounds.prepared(event)
            case on.EffectFailed():
                self.turns.effect_failed(event)
            case on.WorkerJoined():
                self.attendance.joined(event.worker, event.running)
            case on.WorkerLeft():
                self.attendance.gone(event.worker, FailureKind.CANCELLED, event.reason, lost=False)
            case on.WorkerLost():
                self.attendance.gone(event.worker, FailureKind.LOST, event.reason, lost=True)
            case on.HeartbeatReceived():
                self.attendance.heartbeat(event)
            case on.UpdatePublished():
                self.contributions.published(event)
            case on.HandedOver():
                self.directing.handed_over(event)
            case on.Forecasts():
                self.attendance.foreseen(event)
            case on.AttemptFailed():
                self.contributions.attempt_failed(event)
            case on.Aggregated():
                self.rounds.aggregated(event)
            case on.UpdatesRefused():
                self.rounds.refused(event)
            case on.Evaluated():
                self.rounds.evaluated(event)
            case on.ModelPublished():
                self.turns.model_published(event)
            case on.Tick():
                self.attendance.tick()
            case _:
                assert_never(event)
