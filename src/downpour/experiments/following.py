"""Follows a running experiment for users: what they see, and what they disturb.

A `Follower` reads the record while it grows, and gives its lines to takers: event files of
TensorBoard (`show/event_files.py`), loggers and `on_round`, and the announcer of events. The
manager puts each disturbance on record before it happens, so that reports and traces show causes
before effects.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Self, cast

from downpour.base.errors import DownpourError, SpecError
from downpour.base.states import EventKind, ExperimentEvent, ExperimentState
from downpour.cluster.disturbances import Disturbances, Kill, Slow, Slowing
from downpour.cluster.launchers import RunningCluster
from downpour.cluster.launchers.cluster import LocalCluster
from downpour.cluster.manager.status import WaitingWatch
from downpour.core.spec import Meetings, ResolvedSpec
from downpour.experiments.client import OnStatus
from downpour.experiments.surroundings import Location
from downpour.host.paths import path_of
from downpour.host.process import Background
from downpour.network.rpc.messages import Status
from downpour.record import record_lines as told
from downpour.record.record import parse_lines
from downpour.record.result import result_of
from downpour.record.result_parts import RoundResult
from downpour.record.rows import Rows, StepCurve, epoch_until
from downpour.record.tables import Tables
from downpour.show.event_files import EventFiles
from downpour.show.loggers import LoggedRun, Logger, logger_of

log = logging.getLogger(__name__)

Lines = Callable[[str, int], list[str]]
"""Returns the lines of an experiment's record from a line on, as `Client.record` does."""


class Follower:
    """Reads the record of one experiment while it grows; a context manager.

    If a taker raises DownpourError, the follower logs a warning, which says what the taker `does`,
    and gives it nothing more. The experiment and the other takers continue.
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

Call = Callable[[], object]

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
        self._logger = logger
        self._thread = Background[Call](name, lambda call: call())
        self._tables = Tables()
        self._curve = StepCurve(self._tables)
        self._log_steps = getattr(logger, "log_steps", None)
        self._logged: set[int] = set()

    def take(self, record: Sequence[told.Dated]) -> None:
        """Make the logger's calls that follow from these lines."""
        for dated in record:
            had_ended, line = self._tables.ended is not None, dated[1]
            self._tables.take(*dated)
            if isinstance(line, told.SubmittedLine):
                self._begin(line)
            if self._log_steps is not None and (points := [*self._curve.points()]):
                self._thread.take(partial(self._log_steps, points))
            if isinstance(line, told.AggregatedLine | told.EvaluatedLine):
                for number in sorted(self._tables.evaluated.keys() - self._logged):
                    self._log(number)
            if self._tables.ended is not None and not had_ended:
                self._end()

    def close(self) -> None:
        """End the log, even if the experiment continues, and wait a moment for calls."""
        if self._tables.submitted is not None and self._tables.ended is None:
            self._end()
        self._thread.close(_CLOSE_SECONDS)

    def _begin(self, line: told.SubmittedLine) -> None:
        meetings = Meetings.of(line.spec)
        run = LoggedRun(
            experiment=line.experiment,
            name=line.name,
            spec=line.spec,
            resumes=self._resumes,
            rounds_before=meetings.before,
            epochs_before=meetings.epochs_before,
        )
        self._thread.take(partial(self._logger.begin, run))

    def _log(self, number: int) -> None:
        """Log the epoch that ends with a round; the round's number counts on from earlier runs."""
        if self._tables.round(number).version is not None:
            # A restarted manager may report an evaluation twice.
            self._logged.add(number)
            epoch = epoch_until(self._tables, number)
            epoch = replace(epoch, round=self._tables.meetings.before + epoch.round)
            self._thread.take(partial(self._logger.log, epoch))

    def _end(self) -> None:
        result = result_of(Rows(self._tables).finished())
        self._thread.take(partial(self._logger.end, result))


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

    def take(self, record: Sequence[told.Dated]) -> None:
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

    def _events(self, line: told.RecordLine) -> Iterator[ExperimentEvent]:
        match line:
            case told.SubmittedLine():
                self._experiment, self._name = line.experiment, line.name
                yield self._event("submitted", ExperimentState.WAITING)
            case told.FinishedLine() | told.FailedLine() | told.CancelledLine():
                state = ExperimentState(told.kind_of(line))
                yield self._event(cast("EventKind", state.value), state, line.reason)
            case told.WorkerJoinedLine() if line.worker not in self._here:
                # Workers register again with a restarted manager, although they never left.
                self._here.add(line.worker)
                yield self._event("worker-joined", worker=line.worker)
            case told.WorkerLeftLine():
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Watching:
    """The functions, loggers and displays that follow a run.

    `on_resolved` gets the resolved spec before anything starts, `on_status` each new status, and
    `note` a line about each measurement. `on_round` gets each evaluated epoch, `on_event` each
    event of the experiment. Both run in their own threads, and so do `loggers`: each of these is a
    logger, or the text of a `--log`. `progress` says whether to draw bars; None draws them unless
    `on_status` is given. `tensorboard` is a folder for event files.
    """

    on_status: OnStatus | None = None
    on_round: OnRound | None = None
    on_event: OnEvent | None = None
    loggers: Sequence[Logger | str] = ()
    progress: bool | None = None
    tensorboard: Location | None = None
    on_resolved: Callable[[ResolvedSpec], None] = lambda _: None
    note: Callable[[str], object] = log.info

    def __post_init__(self) -> None:
        takes = {"on_status": "a status", "on_round": "an epoch", "on_event": "an event"}
        for name, what in takes.items():
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise SpecError(name, value, f"must be a function that takes {what}")
        if isinstance(self.loggers, str) or not isinstance(self.loggers, Sequence):
            raise SpecError("loggers", self.loggers, "must be a list, such as ['csv:log.csv']")
        for one in self.loggers:
            methods = (getattr(one, name, None) for name in ("begin", "log", "end"))
            if isinstance(one, type) or not (isinstance(one, str) or all(map(callable, methods))):
                accepted = "must be a string such as 'csv:log.csv', or have begin, log and end"
                raise SpecError("loggers", one, accepted)

    @contextmanager
    def bars(self) -> Iterator[OnStatus | None]:
        """Draw bars on standard error or in a notebook, if the user wants them."""
        if not (self.on_status is None if self.progress is None else self.progress):
            yield None
            return
        from downpour.show.tables.live import ProgressDisplay
        from downpour.show.tables.terminal_tables import SafeConsole

        with ProgressDisplay(SafeConsole(stderr=True)) as display:
            yield display.show

    def follower(self, resumes: Sequence[str] = ()) -> Follower:
        """Return the follower of the run's record; the run may resume other experiments."""
        # Everything that may fail comes first, because takers start threads.
        files = event_files(self.tensorboard)
        loggers = [(_name_of(one), logger_of(one)) for one in self.loggers]
        if self.on_round is not None:
            name = f"on_round {_name_of(self.on_round)}"
            loggers.append((name, calling(self.on_round)))
        takers = [LoggerTaker(name, one, resumes) for name, one in loggers]
        return Follower([*files, *takers, *announcers(self.on_event)])


RecordTaker = EventFiles | LoggerTaker | Announcer
"""Takes the lines of one experiment's record, in order; its methods must not take long."""


def event_files(tensorboard: Location | None) -> list[EventFiles]:
    """Return the writer of event files for a running experiment, if a folder is given."""
    return [] if tensorboard is None else [EventFiles(path_of("tensorboard", tensorboard))]


def announcers(on_event: OnEvent | None) -> list[Announcer]:
    """Return the announcer that calls a function with events, if a function is given."""
    if on_event is None:
        return []
    return [Announcer(f"on_event {_name_of(on_event)}", on_event)]


def _name_of(called: object) -> str:
    if isinstance(called, str):
        return f"log {called}"
    return str(getattr(called, "__qualname__", type(called).__qualname__))


@dataclass(slots=True)
class Disturber:
    """Kills processes of a cluster when they are due; `tell` puts on record who suffers what."""

    left: tuple[Kill, ...]
    cluster: LocalCluster
    tell: Callable[[Slow | Kill], None]
    now: Callable[[], float] = time.monotonic
    _began_seconds: float | None = field(init=False, default=None)

    def look(self, status: Status) -> None:
        """Kill what should be dead by now; called with each new status."""
        shown = status.experiment
        if shown is None or shown.state is not ExperimentState.RUNNING:
            return
        if self._began_seconds is None:
            self._began_seconds = self.now()
        trained_seconds = self.now() - self._began_seconds
        for kill in self.left:
            # A missing process is restarting, so a later look kills it.
            is_there = self.cluster.process_of(kill.who) is not None
            if is_there and kill.is_due(shown.rounds_done, trained_seconds):
                self.left = tuple(one for one in self.left if one is not kill)
                self.tell(kill)
                self.cluster.kill(kill.who, again=kill.comes_back)


@contextmanager
def disturbing(
    asked: Disturbances,
    cluster: RunningCluster,
    record: Callable[[str, str], None],
    note: Callable[[str], object],
) -> Iterator[OnStatus]:
    """Disturb a cluster until the block ends; yield the function to call with each new status.

    `record` puts on record which process suffers what. `note` gets a line about each kill that
    never came.
    """
    if not isinstance(cluster, LocalCluster):
        yield lambda _: None
        return

    def tell(one: Slow | Kill) -> None:
        try:
            record(one.who, one.what)
        except DownpourError as error:
            log.warning("%s %s, but the record does not have it: %s", one.who, one.what, error)

    with ExitStack() as slowed:
        for slow in asked.slow:
            tell(slow)
            slowed.callback(Slowing(slow, cluster.process_of).close)
        disturber = Disturber(asked.kill, cluster, tell)
        yield disturber.look
        for kill in disturber.left:
            note(f"--kill {kill} came too late: training had ended")
