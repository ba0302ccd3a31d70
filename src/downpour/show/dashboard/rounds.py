"""Rounds and their attempts: the worker of each shard, and the end of each round.

Rounds count from 0 here, as in the record. Attempts end as in the report's timeline
(`record/timeline.py`). A needless attempt ends when another attempt at its shard is accepted, or
with its round, until a line says when it really ended.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev

from downpour.base.states import BLAMELESS, FailureKind
from downpour.show.dashboard.columns import AttemptColumns, RowTable

ROUNDS_MAX = 30
"""Only this many last rounds count, because workers come, go and slow down."""
_T90 = (3.078, 1.886, 1.638, 1.533, 1.476, 1.440, 1.415, 1.397, 1.383, 1.372)
_T90_MANY = 1.30
"""For 11 to 29 degrees of freedom. Their quantiles fall from 1.363 to 1.311."""


def time_left(durations: Sequence[float], left: int) -> dict[str, float] | None:
    """Return the quantiles 0.1, 0.5 and 0.9 of the seconds that the remaining rounds take.

    We assume that the remaining rounds are like the last ones: independent draws from one normal
    distribution. We estimate its mean m and deviation s from n rounds. With probability 0.8, the
    sum of k further draws is within k m ± t s √(k + k²/n). Here t is the quantile 0.9 of Student's
    t with n - 1 degrees of freedom. In the root, k stands for the noise of each round. The term
    k²/n is the error of the mean, which we know only from n rounds. The interval is wide after two
    rounds, and gets narrower with each round.

    Args:
        durations: how long the last rounds took, in seconds.
        left: how many rounds remain.

    Returns:
        The quantiles by name; None while fewer than two rounds have ended.
    """
    count = len(durations)
    if count < 2 or left < 0:
        return None
    middle = left * fmean(durations)
    t = _T90[count - 2] if count - 2 < len(_T90) else _T90_MANY
    margin = t * stdev(durations) * math.sqrt(left + left**2 / count)
    low, high = max(0.0, middle - margin), middle + margin
    return {"q10": round(low, 1), "q50": round(middle, 1), "q90": round(high, 1)}


TRAINED, LAST, MOVED, STOPPED, FAILED, NEEDLESS = 1, 2, 3, 4, 5, 6
"""Numbers of outcomes; a needless attempt counts as stopped, and may reopen."""
Task = tuple[int, int, int]
"""Round, shard and attempt."""


@dataclass(slots=True)
class _Round:
    """A round; the numbers of its attempts are between `first` and `last`.

    By shard, `accepted` has the attempt whose update counts, and `running` the attempts at work.
    """

    begin: float
    first: int
    last: int
    closed: float | None = None
    updates: int = 0
    waited_for: int | None = None
    known: dict[tuple[int, int], int] = field(default_factory=dict)
    running: dict[int, list[int]] = field(default_factory=dict)
    accepted: dict[int, int] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)
    applied: int = 0

    def at_work(self) -> list[int]:
        """Return all running attempts."""
        return [number for several in self.running.values() for number in several]


@dataclass(frozen=True, slots=True)
class Waited:
    """The last update of a closed round, which waited `seconds` for it after the previous one."""

    attempt: int
    seconds: float
    training_seconds: float


class Rounds:
    """Folds a record's lines about attempts and rounds.

    `reached` is how many rounds are finished, as far as the lines so far show.

    Args:
        stopped: called with an attempt and a line when a worker no longer trains the attempt.
    """

    def __init__(self, stopped: Callable[[int, int], None]) -> None:
        self.attempts = AttemptColumns()
        self.rows: RowTable[int] = RowTable()
        self.shards = 0
        self.durations: deque[float] = deque(maxlen=ROUNDS_MAX)
        self.closed_count = 0
        self.reached = 0
        self.last_closed: float | None = None
        self._stopped = stopped
        self._rounds: dict[int, _Round] = {}
        self._open: dict[int, _Round] = {}

    def assigned(
        self, task: Task, begin: float, told: tuple[int, float, int], line: int
    ) -> tuple[int, bool]:
        """Note that an attempt has begun.

        Args:
            task: the attempt.
            begin: when it began.
            told: the worker's number, its share of the steps, and the step it continues from.
            line: the line that says so.

        Returns:
            The attempt's number, and whether another attempt at the shard is running.
        """
        worker, share, from_step = told
        of_round = self._of(task[0], begin)
        number = self._find(of_round, task)
        if number is None:
            number = self.attempts.add((worker, *task, begin, share, from_step), line)
            of_round.last = number
            of_round.known[task[1:]] = number
        else:
            self.attempts.replace(number, worker, begin, line)
        others = of_round.running.setdefault(task[1], [])
        is_copy = bool(others)
        if self.attempts.value(number, "outcome") == 0 and number not in others:
            others.append(number)
        self._tell(task[0], of_round, line)
        return number, is_copy

    def foreseen(self, task: Task, forecast: Sequence[float], line: int) -> None:
        """Note a forecast: elapsed seconds, the finished share, three quantiles."""
        number = self.number_of(task)
        if number is not None:
            self.attempts.foresee(number, forecast, line)

    def updated(self, task: Task, at: float, line: int) -> int | None:
        """Note that an attempt's update counts; return the attempt's number."""
        of_round, number = self._rounds.get(task[0]), self.number_of(task)
        if of_round is None or number is None:
            return None
        self._end(of_round, number, at, TRAINED, line)
        of_round.updates += task[1] not in of_round.accepted
        of_round.accepted[task[1]] = number
        for other in list(of_round.running.get(task[1], ())):
            self._end(of_round, other, at, NEEDLESS, line)
        self._tell(task[0], of_round, line)
        return number

    def failed(self, task: Task, at: float, failure: str, line: int) -> int | None:
        """Note that an attempt has ended without an update that counts."""
        of_round, number = self._rounds.get(task[0]), self.number_of(task)
        if of_round is None or number is None:
            return None
        before = self.attempts.value(number, "outcome")
        # If its update was lost or refused later, its work had ended with that update.
        done = at if before in {0, NEEDLESS} else self.attempts.seconds(number, "end")
        self._end(of_round, number, done, _outcome(failure), line)
        if of_round.closed is None and of_round.accepted.get(task[1]) == number:
            of_round.updates -= 1
            del of_round.accepted[task[1]]
            self._reopen(of_round, task[1], line)
        self._tell(task[0], of_round, line)
        return number

    def dropped(self, number: int, shards: Iterable[int]) -> None:
        """Note that a round continues without some shards."""
        if number in self._open:
            self._open[number].dropped.update(shards)

    def aggregated(
        self, number: int, parts: Sequence[tuple[int, int]], at: float, line: int
    ) -> Waited | None:
        """Note a version: of a round, or of parts of rounds that are not in step."""
        if not parts:
            self.reached = max(self.reached, number + 1)
            return self._close(number, at, line)
        for each, _ in parts:
            of_round = self._open.get(each)
            if of_round is None:
                continue
            of_round.applied += 1
            self.reached = max(self.reached, each)
            if of_round.applied + len(of_round.dropped) >= self.shards > 0:
                self.reached = max(self.reached, each + 1)
                self._close(each, at, line)
        return None

    def stop_all(self, at: float, line: int) -> None:
        """Note that the experiment has ended, so nothing runs any more."""
        for of_round in self._rounds.values():
            for attempt in of_round.at_work():
                self._end(of_round, attempt, at, STOPPED, line)
        self._open.clear()

    def waiting(self, *, in_step: bool) -> int:
        """Return how many shards of open rounds have neither an update nor a worker."""
        return sum(self._waiting(one, in_step=in_step) for one in self._open.values())

    def updates_of(self, number: int) -> int:
        """Return how many updates of a round count so far."""
        return self._rounds[number].updates if number in self._rounds else 0

    def number_of(self, task: Task) -> int | None:
        """Return the number of an attempt."""
        of_round = self._rounds.get(task[0])
        return self._find(of_round, task) if of_round else None

    def attempt_at(self, number: int) -> tuple[int, int, int, int]:
        """Return an attempt's worker, round, shard and number within its task."""
        worker, of_round, shard, attempt = (
            self.attempts.value(number, name) for name in ("worker", "round", "shard", "attempt")
        )
        return worker, of_round, shard, attempt

    def _of(self, number: int, at: float) -> _Round:
        known = self._rounds.get(number)
        if known is None:
            known = _Round(at, self.attempts.count, self.attempts.count)
            self._rounds[number] = self._open[number] = known
        return known

    def _find(self, of_round: _Round, task: Task) -> int | None:
        if of_round.closed is None:
            return of_round.known.get(task[1:])
        last = min(of_round.last, self.attempts.count - 1)
        return self.attempts.find(of_round.first, last, task)

    def _end(self, of_round: _Round, number: int, at: float, outcome: int, line: int) -> None:
        self.attempts.end(number, max(at, self.attempts.seconds(number, "begin")), outcome, line)
        shard = self.attempts.value(number, "shard")
        others = of_round.running.get(shard, [])
        if number in others:
            others.remove(number)
        if not others:
            of_round.running.pop(shard, None)
        self._stopped(number, line)

    def _reopen(self, of_round: _Round, shard: int, line: int) -> None:
        """Let attempts at a shard continue, because the update that made them needless was lost."""
        for (which, _), number in of_round.known.items():
            if which == shard and self.attempts.value(number, "outcome") == NEEDLESS:
                self.attempts.end(number, 0.0, 0, line)
                of_round.running.setdefault(shard, []).append(number)

    def _close(self, number: int, at: float, line: int) -> Waited | None:
        of_round = self._open.pop(number, None)
        if of_round is None:
            return None
        waited = self._waited(of_round)
        if waited is not None:
            of_round.waited_for = waited.attempt
            end = self.attempts.seconds(waited.attempt, "end")
            self.attempts.end(waited.attempt, end, LAST, line)
        for needless in of_round.at_work():
            self._end(of_round, needless, at, NEEDLESS, line)
        of_round.closed = at
        # We make new dicts, because an emptied dict keeps its room.
        of_round.known, of_round.accepted, of_round.running = {}, {}, {}
        before = of_round.begin if self.last_closed is None else self.last_closed
        self.durations.append(at - before)
        self.last_closed = at
        self.closed_count += 1
        self._tell(number, of_round, line)
        return waited

    def _waited(self, of_round: _Round) -> Waited | None:
        """Return the update that came last; None if the round has only one."""
        ends = {
            number: self.attempts.seconds(number, "end") for number in of_round.accepted.values()
        }
        if len(ends) < 2:
            return None
        # If several came at the same time, the first counts, as in the timeline.
        last = max(ends, key=lambda number: (ends[number], -number))
        before = max(end for number, end in ends.items() if number != last)
        return Waited(last, ends[last] - before, ends[last] - of_round.begin)

    def _waiting(self, of_round: _Round, *, in_step: bool) -> int:
        served = of_round.accepted.keys() | of_round.running.keys() | of_round.dropped
        if in_step:
            return max(0, self.shards - len(served))
        # Some shards may not have come to this round yet.
        return len({shard for shard, _ in of_round.known} - served)

    def _tell(self, number: int, of_round: _Round, line: int) -> None:
        row = (
            number + 1,
            of_round.begin,
            of_round.closed,
            of_round.updates,
            of_round.waited_for,
        )
        self.rows.put(number, row, line)


def _outcome(failure: str) -> int:
    if failure == FailureKind.CANCELLED:
        return STOPPED
    return MOVED if failure in BLAMELESS else FAILED
