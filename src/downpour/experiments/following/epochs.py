"""Turns the lines of a record into calls of loggers and of `on_round`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from downpour.core.spec import Meetings
from downpour.experiments.loggers.base import LoggedRun, Logger
from downpour.experiments.reading.record_fold import RecordFold
from downpour.experiments.reading.result import Result
from downpour.experiments.reading.result_parts import RoundResult
from downpour.files.records.record_lines import AggregatedLine, EvaluatedLine, SubmittedLine
from downpour.files.records.view import Dated
from downpour.host.background import Background

OnRound = Callable[[RoundResult], object]
"""Takes an evaluated epoch."""

Call = Callable[[Logger], None]

_CLOSE_SECONDS = 30.0
"""Loggers upload or sync at their end, which takes longer than a callback should take."""


@dataclass(frozen=True, slots=True)
class RoundCallback:
    """Calls a user's function with each epoch, in the way that a logger is called."""

    on_round: OnRound

    def begin(self, run: LoggedRun) -> None:
        """Do nothing."""

    def log(self, epoch: RoundResult) -> None:
        """Call the function."""
        self.on_round(epoch)

    def end(self, result: Result) -> None:
        """Do nothing."""


class LoggerTaker:
    """Calls one logger in its own thread, as the record grows.

    Args:
        name: The logger's name in the log.
        logger: Gets the experiment, its epochs and its result.
        resumes: The experiments that this one resumes, the latest first.
    """

    def __init__(self, name: str, logger: Logger, resumes: Sequence[str] = ()) -> None:
        self.does = f"calls of {name} are made"
        self._resumes = tuple(resumes)
        self._thread = Background[Call](name, lambda call: call(logger))
        self._record: list[Dated] = []
        self._fold = RecordFold()
        self._told: set[int] = set()

    def take(self, record: Sequence[Dated]) -> None:
        """Make the logger's calls that follow from these lines."""
        for dated in record:
            has_ended = self._fold.end is not None
            self._record.append(dated)
            self._fold.take(dated[1])
            for call in self._calls(dated, has_ended=has_ended):
                self._thread.take(call)

    def close(self) -> None:
        """End the log, even if the experiment continues, and wait a moment for calls."""
        if self._fold.submitted is not None and self._fold.end is None:
            self._thread.take(_ending(Result.from_record(self._record)))
        self._thread.close(_CLOSE_SECONDS)

    def _calls(self, dated: Dated, *, has_ended: bool) -> Iterator[Call]:
        _, line = dated
        if isinstance(line, SubmittedLine):
            run = self._run(line)
            yield lambda logger: logger.begin(run)
        if isinstance(line, AggregatedLine | EvaluatedLine):
            yield from map(_logging, self._epochs())
        if self._fold.end is not None and not has_ended:
            yield _ending(Result.from_record(self._record))

    def _epochs(self) -> Iterator[RoundResult]:
        """Yield the evaluated epochs that the logger does not know yet."""
        # A restarted manager may report an evaluation twice.
        for number in sorted(self._fold.evaluated.keys() - self._told):
            if number in self._fold.aggregated:
                self._told.add(number)
                yield self._counted_on(self._fold.epoch_until(number))

    def _run(self, line: SubmittedLine) -> LoggedRun:
        meetings = Meetings.of(line.spec)
        return LoggedRun(
            experiment=line.experiment,
            name=line.name,
            spec=line.spec,
            resumes=self._resumes,
            rounds_before=meetings.before,
            epochs_before=meetings.epochs_before,
        )

    def _counted_on(self, epoch: RoundResult) -> RoundResult:
        """Return an epoch whose last round has the number that it has in the whole training."""
        return replace(epoch, round=self._fold.meetings.before + epoch.round)


def _logging(epoch: RoundResult) -> Call:
    return lambda logger: logger.log(epoch)


def _ending(result: Result) -> Call:
    return lambda logger: logger.end(result)
