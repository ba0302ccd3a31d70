"""Passes new lines of a running experiment's record to files, loggers and callbacks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Protocol, Self

from downpour.base.errors import DownpourError
from downpour.experiments.following.announcing import Announcer
from downpour.files.records.record import parse_lines
from downpour.files.records.view import Dated
from downpour.network.rpc.messages import Status

log = logging.getLogger(__name__)

Lines = Callable[[str, int], list[str]]
"""Returns the lines of an experiment's record from a line on, as `Client.record` does."""


class RecordTaker(Protocol):
    """Takes the lines of one experiment's record, in order.

    Its methods may raise DownpourError, and must not take long. `does` is for the log: it says what
    stops after an error.
    """

    does: str

    def take(self, record: Sequence[Dated]) -> None:
        """Take the next lines."""

    def close(self) -> None:
        """Take no more lines: the experiment has ended, or its caller has stopped waiting."""


class Follower:
    """Reads the record of one experiment while it grows; a context manager.

    If a taker raises an error, the follower logs a warning and gives that taker nothing more. The
    experiment and the other takers continue.

    Args:
        takers: Get each line once.
        announcers: Get each line, too, and each status of the experiment.
    """

    def __init__(self, takers: Sequence[RecordTaker], announcers: Sequence[Announcer] = ()) -> None:
        self._takers = [*takers, *announcers]
        self._announcers = announcers
        self._taken = 0

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
        """Take the status of the experiment."""
        for announcer in self._announcers:
            announcer.see(status)

    def follow(self, experiment: str, record: Lines) -> None:
        """Pass on the new lines of an experiment's record; always of the same experiment."""
        if not self._takers:
            return
        try:
            lines = record(experiment, self._taken)
            dated = parse_lines(lines)
        except DownpourError as error:
            for taker in [*self._takers]:
                self._leave_out(taker, error)
            return
        self._taken += len(lines)
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
