"""The user's part in a run: what the user sees, and what the user disturbs.

The manager puts each disturbance on record before it happens, so that reports and traces show
causes before effects.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from downpour.base.errors import DownpourError, SpecError
from downpour.base.states import ExperimentState
from downpour.cluster.disturbances import Disturbances, Kill, Slow, Slowing
from downpour.cluster.launchers import RunningCluster
from downpour.cluster.launchers.cluster import LocalCluster
from downpour.core.spec import ResolvedSpec
from downpour.experiments.client import OnStatus
from downpour.experiments.following import (
    Announcer,
    Follower,
    LoggerTaker,
    OnEvent,
    OnRound,
    calling,
)
from downpour.experiments.running.surroundings import Location
from downpour.host.paths import path_of
from downpour.network.rpc.messages import Status
from downpour.show.event_files import EventFiles
from downpour.show.loggers import Logger, logger_of

log = logging.getLogger(__name__)


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
        from downpour.show.tables.cells import SafeConsole
        from downpour.show.tables.live import ProgressDisplay

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
