"""Rounds and their attempts: the worker of each shard, and the end of each round.

Rounds count from 0 here, as in the record. The record's tables (`record/tables.py`) say how the
attempts of open rounds end. Columns keep all attempts, and the tables forget closed rounds, because
a long experiment has millions of attempts.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from downpour.core.round_times import RoundTimes
from downpour.record.record_lines import (
    AggregatedLine,
    AssignedLine,
    AttemptFailedLine,
    UpdatedLine,
    WithheldLine,
)
from downpour.record.tables import RecordedAttempt, RecordedRound, Tables, outcome_of
from downpour.show.dashboard import columns

Task = tuple[int, int, int]
"""Round, shard and attempt."""


@dataclass(frozen=True, slots=True)
class Waited:
    """The last update of a closed round, which waited `seconds` for it after the previous one."""

    attempt: int
    seconds: float
    training_seconds: float


class Rounds:
    """The rows of rounds and attempts, which follow from the tables after each line.

    `reached` is how many rounds are finished, as far as the lines so far show.

    Args:
        tables: the tables, which have taken each line before this does.
        stopped: called with an attempt and a line when a worker no longer trains the attempt.
    """

    def __init__(self, tables: Tables, stopped: Callable[[int, int], None]) -> None:
        self.attempts = columns.AttemptColumns()
        self.rows: columns.RowTable[int] = columns.RowTable()
        self.times = RoundTimes()
        self.reached = 0
        self._tables = tables
        self._stopped = stopped
        self._open: dict[int, float] = {}  # when each open round began
        self._numbers: dict[Task, int] = {}  # of the attempts of open rounds
        self._first: dict[int, int] = {}
        self._last: dict[int, int] = {}

    def assigned(
        self, at: float, assigned: AssignedLine, worker: int, line: int
    ) -> tuple[int, bool]:
        """Note that an attempt of a worker has begun.

        Returns:
            The attempt's number, and whether another attempt at the shard is running.
        """
        task = assigned.round, assigned.shard, assigned.attempt
        if self._tables.halts and self._tables.halts[-1][1] == at:
            self.times.last_at = at  # a pause is no part of a round's time
        if task[0] not in self._first:
            self._open[task[0]], self._first[task[0]] = at, self.attempts.count
            self._tell(task[0], line)
        is_alone = len(self._tables.rounds[task[0]].attempts[task[1]]) == 1
        running = () if is_alone else self._running(task[0], task[1])
        number = self.number_of(task)
        if number is None:
            values = worker, *task, at, assigned.from_step
            number = self._numbers[task] = self.attempts.add(values, line)
            self._last[task[0]] = number
        else:
            self.attempts.replace(number, worker, at, line)
        return number, any(one.number != task[2] for one in running)

    def foreseen(self, task: Task, forecast: Sequence[float], line: int) -> None:
        """Note a forecast: elapsed seconds, the finished share, three quantiles."""
        number = self.number_of(task)
        if number is not None:
            self.attempts.foresee(number, forecast, line)

    def ended(
        self, at: float, end_line: UpdatedLine | WithheldLine | AttemptFailedLine, line: int
    ) -> int | None:
        """Note that an attempt has ended, with or without an update; return its number."""
        task = end_line.round, end_line.shard, end_line.attempt
        number = self.number_of(task)
        if number is None:
            return None
        if task in self._numbers:
            of_round = self._tables.rounds[end_line.round]
            for attempt in of_round.attempts[end_line.shard].values():
                self._show(of_round, attempt, line)
            return number
        # The tables have forgotten this round.
        end, outcome = at, "trained"
        if isinstance(end_line, AttemptFailedLine):
            outcome = outcome_of(end_line.failure)
            # If its update was lost or refused later, its work had ended with that update.
            if self.attempts.value(number, "outcome") not in {0, columns.NEEDLESS}:
                end = self.attempts.seconds(number, "end")
        self.attempts.end(number, end, columns.OUTCOMES.index(outcome), line)
        return number

    def aggregated(self, at: float, made: AggregatedLine, line: int) -> Waited | None:
        """Note a version: of a round, or of parts of rounds that are not in step."""
        waited = None
        for number in dict.fromkeys(number for number, _ in made.parts) or (made.round,):
            of_round = self._tables.rounds[number]
            is_closed = of_round.closed is not None
            if number in self._open or not made.parts:
                self.reached = max(self.reached, number + is_closed)
            if is_closed and number in self._open:
                waited = self._close(at, of_round, line)
        self._tables.versions.clear()
        return None if made.parts else waited

    def stop_all(self, at: float, line: int) -> None:
        """Note that the experiment has ended, so nothing runs any more."""
        for number in self._numbers.values():
            if self.attempts.value(number, "outcome") == 0:
                self._end(number, at, columns.STOPPED, line)
        self._open.clear()

    def waiting(self, *, in_step: bool) -> int:
        """Return how many shards of open rounds have neither an update nor a worker."""
        submitted, waiting = self._tables.submitted, 0
        for number in self._open:
            of_round = self._tables.rounds[number]
            running = {shard for shard in of_round.attempts if any(self._running(number, shard))}
            served = of_round.accepted.keys() | running | of_round.dropped.keys()
            if in_step:
                waiting += max(0, (submitted.shards if submitted is not None else 0) - len(served))
            else:  # some shards may not have come to this round yet
                waiting += len(of_round.attempts.keys() - served)
        return waiting

    def number_of(self, task: Task) -> int | None:
        """Return the number of an attempt."""
        if task in self._numbers or task[0] in self._open or task[0] not in self._first:
            return self._numbers.get(task)
        return self.attempts.find(self._first[task[0]], self._last[task[0]], task)

    def _running(self, number: int, shard: int) -> Iterator[RecordedAttempt]:
        of_round = self._tables.rounds[number]
        for attempt in of_round.attempts.get(shard, {}).values():
            if attempt.assigned is not None and of_round.end_of(attempt)[0] is None:
                yield attempt

    def _show(self, of_round: RecordedRound, attempt: RecordedAttempt, line: int) -> None:
        """Show how an attempt has ended, or that it continues because an update was lost."""
        number = self._numbers.get((of_round.number, attempt.shard, attempt.number))
        if number is None:
            return
        end, outcome = of_round.end_of(attempt)
        how = columns.OUTCOMES.index(None if outcome == "open" else outcome)
        if outcome == "stopped" and attempt.end is None:
            how = columns.NEEDLESS
        self._end(number, end or 0.0, how, line)

    def _end(self, number: int, at: float, outcome: int, line: int) -> None:
        before = self.attempts.value(number, "outcome")
        end = max(at, self.attempts.seconds(number, "begin")) if outcome else 0.0
        if outcome != before or round(end, 3) != self.attempts.seconds(number, "end"):
            self.attempts.end(number, end, outcome, line)
        if outcome and not before:
            self._stopped(number, line)

    def _close(self, at: float, of_round: RecordedRound, line: int) -> Waited | None:
        number, begin = of_round.number, self._open[of_round.number]
        waited = self._waited(of_round, begin)
        for attempt in of_round.assigned():
            task = number, attempt.shard, attempt.number
            if task in self._numbers and not self.attempts.value(self._numbers[task], "outcome"):
                self._show(of_round, attempt, line)
            self._numbers.pop(task, None)
        if waited is not None:
            end = self.attempts.seconds(waited.attempt, "end")
            self.attempts.end(waited.attempt, end, columns.LAST, line)
        self._tell(number, line)
        del self._open[number]
        self._tables.rounds[number] = RecordedRound(number, closed=at, version=of_round.version)
        self.times.close(at, begin)
        return waited

    def _waited(self, of_round: RecordedRound, begin: float) -> Waited | None:
        """Return the update that came last; None if the round has only one."""
        last = of_round.last()
        if last is None or (task := (last.round, last.shard, last.number)) not in self._numbers:
            return None
        ends = [one.end or 0.0 for one in of_round.accepted.values() if one is not last]
        end = last.end or 0.0
        return Waited(self._numbers[task], end - max(ends), end - begin)

    def _tell(self, number: int, line: int) -> None:
        row = (number + 1, self._open[number], self._tables.rounds[number].closed)
        self.rows.put(number, row, line)
