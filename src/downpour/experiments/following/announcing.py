"""Turns the lines of a record, and its experiment's status, into events for `on_event`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from downpour.base.experiment_event import EventKind, ExperimentEvent
from downpour.base.states import ExperimentState
from downpour.cluster.waiting import WaitingWatch
from downpour.files.records.record_lines import (
    CancelledLine,
    FailedLine,
    FinishedLine,
    RecordLine,
    SubmittedLine,
    WorkerJoinedLine,
    WorkerLeftLine,
)
from downpour.files.records.view import Dated
from downpour.host.background import Background
from downpour.network.rpc.messages import Status

OnEvent = Callable[[ExperimentEvent], object]
"""Takes an event."""


class Announcer:
    """Calls a function, in its own thread, with the events of one experiment.

    Args:
        name: The function's name in the log.
        on_event: Gets the events.
        clock: Returns seconds, from any beginning.
    """

    def __init__(
        self, name: str, on_event: OnEvent, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.does = f"calls of {name} are made"
        self._thread = Background[ExperimentEvent](name, on_event)
        self._waiting = WaitingWatch()
        self._clock = clock
        self._experiment = self._name = ""
        self._state = ExperimentState.WAITING
        self._here: set[str] = set()

    def take(self, record: Sequence[Dated]) -> None:
        """Announce the events in these lines."""
        for _, line in record:
            for event in self._events(line):
                self._thread.take(event)

    def see(self, status: Status) -> None:
        """Announce that the experiment waits, if it has waited for too long."""
        if status.experiment is None or status.experiment.state.ended:
            return
        self._state = status.experiment.state
        event = self._waiting.take(status, self._clock())
        if event is not None:
            self._thread.take(event)

    def give_up(self, error: BaseException) -> None:
        """Announce that the caller stops waiting, unless the record has reported an end."""
        if self._state.ended:
            return
        if isinstance(error, Exception):
            event = self._event("failed", ExperimentState.FAILED, str(error))
        else:
            event = self._event("cancelled", ExperimentState.CANCELLED, "the run was stopped")
        self._thread.take(event)

    def close(self) -> None:
        """Wait a moment for calls that have not finished."""
        self._thread.close()

    def _events(self, line: RecordLine) -> Iterator[ExperimentEvent]:
        match line:
            case SubmittedLine():
                self._experiment, self._name = line.experiment, line.name
                yield self._event("submitted", ExperimentState.WAITING)
            case FinishedLine():
                yield self._event("finished", ExperimentState.FINISHED, line.reason)
            case FailedLine():
                yield self._event("failed", ExperimentState.FAILED, line.reason)
            case CancelledLine():
                yield self._event("cancelled", ExperimentState.CANCELLED, line.reason)
            case WorkerJoinedLine() if line.worker not in self._here:
                # Workers register again with a restarted manager, although they never left.
                self._here.add(line.worker)
                yield self._event("worker-joined", worker=line.worker)
            case WorkerLeftLine():
                self._here.discard(line.worker)
                kind: EventKind = "worker-lost" if line.lost else "worker-left"
                yield self._event(kind, reason=line.reason, worker=line.worker)
            case _:
                pass

    def _event(
        self,
        kind: EventKind,
        state: ExperimentState | None = None,
        reason: str = "",
        worker: str = "",
    ) -> ExperimentEvent:
        self._state = state or self._state
        return ExperimentEvent(
            kind=kind,
            experiment=self._experiment,
            name=self._name,
            state=self._state,
            reason=reason,
            worker=worker,
        )
