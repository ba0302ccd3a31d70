"""Follows a running experiment for users: its record, epoch by epoch and event by event.

A `Follower` reads the record while it grows, and gives its lines to takers: event files of
TensorBoard (`show/event_files.py`), loggers and `on_round`, and the announcer of events.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Protocol, Self, cast

from downpour.base.errors import DownpourError
from downpour.base.states import EventKind, ExperimentEvent, ExperimentState
from downpour.cluster.manager.status import WaitingWatch
from downpour.core.spec import Meetings
from downpour.host.process import Background
from downpour.network.rpc.messages import Status
from downpour.record.record import parse_lines
from downpour.record.record_lines import (
    AggregatedLine,
    CancelledLine,
    Dated,
    EvaluatedLine,
    FailedLine,
    FinishedLine,
    RecordLine,
    SubmittedLine,
    WorkerJoinedLine,
    WorkerLeftLine,
)
from downpour.record.result import result_of
from downpour.record.result_parts import RoundResult
from downpour.record.rows import Rows, epoch_until
from downpour.record.tables import Tables
from downpour.show.loggers import LoggedRun, Logger

log = logging.getLogger(__name__)

Lines = Callable[[str, int], list[str]]
"""Returns the lines of an experiment's record from a line on, as `Client.record` does."""


class RecordTaker(Protocol):
    """Takes the lines of one experiment's record, in order.

    Its methods may raise DownpourError, and must not take long.
    """

    does: str
    """For the log: what stops after an error."""

    def take(self, record: Sequence[Dated]) -> None:
        """Take the next lines."""

    def close(self) -> None:
        """Take no more lines: the experiment has ended, or its caller has stopped waiting."""


class Follower:
    """Reads the record of one experiment while it grows; a context manager.

    If a taker raises an error, the follower logs a warning and gives that taker nothing more. The
    experiment and the other takers continue.
    """

    def __init__(self, takers: Sequence[RecordTaker]) -> None:
        self._takers = list(takers)
        self._announcers = [taker for taker in takers if isinstance(taker, Announcer)]
        self._lines = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:
            for announcer in self._announcers:
                announcer.give_up(error)
        with ExitStack() as closing:
            for taker in self._takers:
                closing.callback(self._try, taker, taker.close)

    def see(self, status: Status) -> None:
        """Give the status of the experiment to the announcers."""
        for announcer in self._announcers:
            announcer.see(status)

    def follow(self, experiment: str, record: Lines) -> None:
        """Pass on the new lines of an experiment's record; always of the same experiment."""
        if not self._takers:
            return
        try:
            lines = record(experiment, self._lines)
            dated = parse_lines(lines)
        except DownpourError as error:
            for taker in [*self._takers]:
                self._leave_out(taker, error)
            return
        self._lines += len(lines)
        for taker in [*self._takers] if dated else ():
            self._try(taker, lambda taker=taker: taker.take(dated))  # type: ignore[misc]

    def _try(self, taker: RecordTaker, work: Callable[[], None]) -> None:
        try:
            work()
        except DownpourError as error:
            self._leave_out(taker, error)

    def _leave_out(self, taker: RecordTaker, error: DownpourError) -> None:
        log.warning("no more %s: %s", taker.does, error)
        self._takers.remove(taker)


OnRound = Callable[[RoundResult], object]
"""Takes an evaluated epoch."""

Call = Callable[[Logger], None]

_CLOSE_SECONDS = 30.0
"""Loggers upload or sync at their end, which takes longer than a callback should take."""


def calling(on_round: OnRound) -> Logger:
    """Return a logger that only calls a user's function with each epoch."""
    made = SimpleNamespace(begin=lambda _: None, log=on_round, end=lambda _: None)
    return cast("Logger", made)


class LoggerTaker:
    """Calls one logger in its own thread, as the record grows; the log knows it by its `name`.

    The experiment `resumes` others, the latest first.
    """

    def __init__(self, name: str, logger: Logger, resumes: Sequence[str] = ()) -> None:
        self.does = f"calls of {name} are made"
        self._resumes = tuple(resumes)
        self._thread = Background[Call](name, lambda call: call(logger))
        self._tables = Tables()
        self._logged: set[int] = set()

    def take(self, record: Sequence[Dated]) -> None:
        """Make the logger's calls that follow from these lines."""
        for dated in record:
            had_ended, line = self._tables.ended is not None, dated[1]
            self._tables.take(*dated)
            if isinstance(line, SubmittedLine):
                self._begin(line)
            if isinstance(line, AggregatedLine | EvaluatedLine):
                for number in sorted(self._tables.evaluated.keys() - self._logged):
                    self._log(number)
            if self._tables.ended is not None and not had_ended:
                self._end()

    def close(self) -> None:
        """End the log, even if the experiment continues, and wait a moment for calls."""
        if self._tables.submitted is not None and self._tables.ended is None:
            self._end()
        self._thread.close(_CLOSE_SECONDS)

    def _begin(self, line: SubmittedLine) -> None:
        meetings = Meetings.of(line.spec)
        run = LoggedRun(
            experiment=line.experiment,
            name=line.name,
            spec=line.spec,
            resumes=self._resumes,
            rounds_before=meetings.before,
            epochs_before=meetings.epochs_before,
        )
        self._thread.take(lambda logger: logger.begin(run))

    def _log(self, number: int) -> None:
        """Log the epoch that ends with a round; the round's number counts on from earlier runs."""
        if self._tables.round(number).version is not None:
            # A restarted manager may report an evaluation twice.
            self._logged.add(number)
            epoch = epoch_until(self._tables, number)
            epoch = replace(epoch, round=self._tables.meetings.before + epoch.round)
            self._thread.take(lambda logger: logger.log(epoch))

    def _end(self) -> None:
        result = result_of(Rows(self._tables).finished())
        self._thread.take(lambda logger: logger.end(result))


OnEvent = Callable[[ExperimentEvent], object]
"""Takes an event."""


class Announcer:
    """Calls a function, in its own thread, with the events of one experiment.

    The caller also gives it each status: only that says that an experiment waits. The log knows the
    function by its `name`.
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
