"""A record folded into tables; everything that people see of an experiment is a query on these.

This is the only place that knows what lines of a record mean together. For example: which
update of a shard counts, when an attempt became needless, what made a version. If a
restarted manager recorded something twice, the later line counts. Rounds and shards count from 0,
and times are the record's. Rows are packed in few bytes each: a long experiment has millions.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from struct import calcsize, iter_unpack, pack
from typing import Any, Literal, Self, TypeVar, overload

import msgspec
import numpy as np

from downpour.base.names import AUTO
from downpour.base.states import BLAMELESS, FailureKind
from downpour.core.resolve import meetings_of
from downpour.core.spec import Meetings
from downpour.record import record_lines as told
from downpour.record.record_lines import MaybeKnown, Sample, WorkerChange

Row = TypeVar("Row")


class Packed(Sequence[Row]):
    """Rows of a word and numbers in few bytes each; a row is made when someone asks for it."""

    make: Callable[..., Row]
    """Makes a row from its word and its numbers."""

    def __init__(self, layout: str) -> None:
        self._layout = f"=i{layout}"  # not a `Struct`, which can be neither pickled nor copied
        self._content = bytearray()
        self._words: dict[str, int] = {}

    def add(self, word: str, *numbers: float) -> None:
        """Add a row."""
        place = self._words.setdefault(word, len(self._words))
        self._content += pack(self._layout, place, *numbers)

    def __len__(self) -> int:
        return len(self._content) // calcsize(self._layout)

    def __iter__(self) -> Iterator[Row]:
        return self._made(self._content)

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Row, ...]: ...
    def __getitem__(self, place: int | slice) -> Row | tuple[Row, ...]:
        if isinstance(place, slice):
            return tuple(self[each] for each in range(len(self))[place])
        begin = range(len(self))[place] * calcsize(self._layout)
        return next(self._made(self._content[begin : begin + calcsize(self._layout)]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))

    def sort(self, *places: int) -> None:
        """Sort the rows by the numbers at these places, the most important one first."""
        columns = [(str(place), code) for place, code in enumerate(self._layout[1:], start=-1)]
        table = np.frombuffer(self._content, columns)
        order = np.lexsort([table[str(place)] for place in reversed(places)])
        if (np.diff(order) < 0).any():
            table[:] = table[order]

    def _made(self, content: bytes | bytearray) -> Iterator[Row]:
        words, make = [*self._words], self.make
        for place, *numbers in iter_unpack(self._layout, content):
            yield make(words[place], *numbers)


MANAGER = "manager"
DROPPED, OVERTAKEN, PAUSED = "dropped", "overtaken", "paused"
MOVED = frozenset({FailureKind.HANDED_OVER, FailureKind.WITHDRAWN})
"""Failures by which a decision gave a shard to another worker."""

Outcome = Literal["trained", "moved", "stopped", "failed", "open"]
"""How an attempt ended: a `moved` one continued elsewhere, a `stopped` one became needless."""


class RecordedAttempt(msgspec.Struct):
    """One attempt at a shard, and the record's lines about it."""

    round: int
    shard: int
    number: int
    place: int = -1
    """Its place in the order of all assignments; below 0 if the record lacks its assignment."""
    begin: float = 0.0
    assigned: told.AssignedLine | None = None
    foreseen: list[told.ForeseenLine] = msgspec.field(default_factory=list)
    saved: list[tuple[float, told.SavedLine]] = msgspec.field(default_factory=list)
    updated: told.UpdatedLine | None = None
    failed: told.AttemptFailedLine | None = None
    numeric_class: str = ""
    """That of its worker when it published; empty if the record does not say."""
    end: float | None = None
    """When its own line ended it. An update that was lost later ended the work all the same."""
    outcome: Outcome = "open"
    stop: float | None = None
    """When its work ended, or became needless before."""
    stopped_by: str = ""
    """A kind of failure, `DROPPED`, `OVERTAKEN` or `PAUSED`; empty if it published an update."""

    def stop_at(self, at: float, reason: str) -> None:
        """End the work, unless it has ended before."""
        if self.stop is None:
            self.stop, self.stopped_by = at, reason


LATE_SHARE = 0.2
"""A round has waited for its last update if it took this share of the round alone."""


@dataclass(slots=True)
class RecordedRound:
    """A round: the attempts at its shards by number, and those whose updates count."""

    number: int
    attempts: dict[int, dict[int, RecordedAttempt]] = field(default_factory=dict)
    accepted: dict[int, RecordedAttempt] = field(default_factory=dict)
    retrained: set[int] = field(default_factory=set)
    """The shards that had another update before, which was lost or refused."""
    dropped: dict[int, float] = field(default_factory=dict)
    """The shards that the round was closed without, and when."""
    samples: tuple[int, ...] = ()
    """The sizes of the shards, if a policy resized them."""
    moves: int = 0
    has_hand_overs: bool = False
    applied: int = 0
    """How many of its updates are in versions, if shards are not in step."""
    closed: float | None = None
    version: told.AggregatedLine | None = None
    """The version that closed it; if shards are not in step, all since another round's."""

    def attempt(self, shard: int, number: int) -> RecordedAttempt:
        """Return an attempt, a new one if this is its first line."""
        attempts = self.attempts.setdefault(shard, {})
        found = attempts.get(number)
        if found is None:
            found = attempts[number] = RecordedAttempt(self.number, shard, number)
        return found

    def assigned(self) -> list[RecordedAttempt]:
        """Return the attempts that a worker got, in the order of their assignments."""
        several = [one for each in self.attempts.values() for one in each.values() if one.assigned]
        return sorted(several, key=attrgetter("place"))

    def end_of(self, attempt: RecordedAttempt) -> tuple[float | None, Outcome]:
        """Return when an attempt ended, and how; it also ends when it becomes needless."""
        if attempt.end is not None:
            return attempt.end, attempt.outcome
        accepted = self.accepted.get(attempt.shard)
        needless = accepted.end if accepted is not None else self.closed
        return needless, "open" if needless is None else "stopped"

    def last(self) -> RecordedAttempt | None:
        """Return the attempt that the round waited for: its update came last, and late.

        Some update is always the last. It is late if the others were there for a good part of the
        round.
        """
        in_order = sorted(self.accepted.values(), key=lambda one: (one.end or 0.0, -one.place))
        if len(in_order) < 2:
            return None
        before, last = ((one.end or 0.0) for one in in_order[-2:])
        begin = min(one.begin for one in in_order)
        return in_order[-1] if last - before > LATE_SHARE * (last - begin) else None

    def stop_all(self, shard: int, at: float, reason: str) -> None:
        """End the work of all attempts at a shard."""
        for attempt in self.attempts.get(shard, {}).values():
            attempt.stop_at(at, reason)


@dataclass(frozen=True, slots=True)
class RecordedVersion:
    """A model version, when it was made, and the updates that it was made from."""

    at: float
    line: told.AggregatedLine
    updates: dict[tuple[int, int], RecordedAttempt]
    """By round and shard, in the order of their additions."""


@dataclass(slots=True)
class Verification:
    """The checksums of the first steps so far, by numeric class, and the processes of each."""

    _processes: dict[str, dict[str, set[str]]] = field(default_factory=dict)

    def prepared(self, line: told.PreparedLine) -> None:
        """Take in the steps of the manager and of its rehearsal."""
        self.updated(MANAGER, line.tried_with, line.trial)
        if line.rehearsed:
            self.updated("rehearsal", line.tried_with, line.trial)

    def updated(self, process: str, numeric_class: str, checksum: str) -> None:
        """Take in the steps of a process, if it has repeated them."""
        if checksum:
            self._processes.setdefault(numeric_class, {}).setdefault(checksum, set()).add(process)

    def of(self, spec: Mapping[str, Any]) -> bool | None:
        """Say whether two processes of one class agree, and none of it disagrees.

        None if the spec trains no code of a user's.
        """
        if not spec.get("task") and ":" not in spec.get("model", ""):
            return None
        classes = self._processes.values()
        agree = any(len(processes) > 1 for sums in classes for processes in sums.values())
        return agree and all(len(sums) == 1 for sums in classes)


class RoundForgottenError(Exception):
    """A line is about a round that these tables have forgotten."""


@dataclass(slots=True)
class Tables:
    """The tables of one record so far."""

    submitted: told.SubmittedLine | None = None
    submitted_at: float = 0.0
    prepared: told.PreparedLine | None = None
    drawn_with: str = ""
    """The numeric class in which the manager first drew the model."""
    ended: told.EndLine | None = None
    lines: int = 0
    begin: float = 0.0
    now: float = 0.0
    start: float = 0.0
    """When a worker first got a task."""
    rounds: dict[int, RecordedRound] = field(default_factory=dict)
    versions: dict[int, RecordedVersion] = field(default_factory=dict)
    waiting: dict[tuple[int, int], RecordedAttempt] = field(default_factory=dict)
    """The updates that count and are in no version yet, by round and shard."""
    evaluated: dict[int, tuple[float, told.EvaluatedLine]] = field(default_factory=dict)
    tested: dict[int, tuple[float, told.EvaluatedLine]] = field(default_factory=dict)
    """Evaluations on the test examples, if others are set apart for validation."""
    improved: told.ImprovedLine | None = None
    begun: bool = False  # its turn in the queue has come, and it was not set aside since
    paused: bool = False
    halts: list[tuple[float, float]] = field(default_factory=list)
    """When a pause had stopped all work, and when a worker next got a task."""
    failures: list[tuple[told.AttemptFailedLine, bool]] = field(default_factory=list)
    """Failed attempts, and whether each had an update, which was damaged or lost."""
    joined: dict[str, told.WorkerJoinedLine] = field(default_factory=dict)
    trained: dict[str, dict[str, None]] = field(default_factory=dict)
    """By numeric class, the workers whose updates counted."""
    changes: list[tuple[float, WorkerChange]] = field(default_factory=list)
    """Who came late, left, has other packages or computes wrong, and who was disturbed."""
    used: dict[str, Packed[Sample]] = field(default_factory=dict)
    """The samples of each worker's resources."""
    verification: Verification = field(default_factory=Verification)
    forgotten: Collection[int] = ()
    """Rounds that are over and no longer in `rounds`."""
    _assigned: int = 0
    _last_stop: float = 0.0
    _present: set[str] = field(default_factory=set)
    _unclosed: list[told.AggregatedLine] = field(default_factory=list)

    @classmethod
    def of(cls, record: Iterable[MaybeKnown]) -> Self:
        """Fold a record."""
        tables = cls()
        for at, line in record:
            tables.take(at, line)
        return tables

    @property
    def spec(self) -> Mapping[str, Any]:
        """The fields of the spec; none before the submission."""
        return self.submitted.spec if self.submitted is not None else {}

    @property
    def meetings(self) -> Meetings:
        """How rounds make up epochs."""
        return Meetings.of(self.spec)

    @property
    def verified(self) -> bool | None:
        """Whether two processes agree on the first steps of a user's code; None without any."""
        return self.verification.of(self.spec) if self.prepared is not None else None

    def working_seconds(self, begin: float, end: float) -> float:
        """Return the seconds between two moments in which the experiment was not set aside."""
        halts = (min(end, until) - max(begin, since) for since, until in self.halts)
        return end - begin - sum(max(0.0, seconds) for seconds in halts)

    def round(self, number: int) -> RecordedRound:
        """Return a round, a new one if this is its first line."""
        found = self.rounds.get(number)
        if found is None:
            if number in self.forgotten:
                raise RoundForgottenError
            found = self.rounds[number] = RecordedRound(number)
        return found

    def updates(self, number: int) -> list[told.UpdatedLine]:
        """Return the updates of a round that count."""
        accepted = self.rounds[number].accepted.values() if number in self.rounds else ()
        return [attempt.updated for attempt in accepted if attempt.updated is not None]

    def take(self, at: float, line: told.RecordLine | None) -> None:  # noqa: C901, PLR0912, PLR0915 - an arm a line
        """Take in the next line."""
        self.begin, self.now = self.begin if self.lines else at, at
        self.lines += 1
        match line:
            case told.AssignedLine():
                self._assign(at, line)
            case told.UpdatedLine():
                self._accept(at, line)
            case told.WithheldLine():
                attempt = self.round(line.round).attempt(line.shard, line.attempt)
                attempt.end, attempt.outcome = at, "stopped"
                attempt.stop_at(at, OVERTAKEN)
            case told.ForeseenLine():
                self.round(line.round).attempt(line.shard, line.attempt).foreseen.append(line)
            case told.SavedLine():
                self.round(line.round).attempt(line.shard, line.attempt).saved.append((at, line))
            case told.HandOverAskedLine():
                self.round(line.round).has_hand_overs = True
            case told.AttemptFailedLine():
                self._fail(at, line)
            case told.DroppedLine():
                self._drop(at, line)
            case told.ResizedLine():
                self.round(line.round).samples = line.samples
            case told.AggregatedLine():
                self._take_version(at, line)
            case told.EvaluatedLine():
                validates = bool(self.spec.get("validation"))
                table = self.tested if validates and line.part == "test" else self.evaluated
                table.pop(line.round, None)  # the latest comes last
                table[line.round] = at, line
            case told.ImprovedLine():
                self.improved = line
            case told.RescheduledLine(change="paused" | "continued"):
                self.paused, self._last_stop = line.change == "paused", at
            case told.RescheduledLine(change="set aside"):
                self.begun = False
                self.halts.append((self._last_stop, math.inf))
            case told.BegunLine():
                self.begun = True
            case told.SubmittedLine():
                self.submitted, self.submitted_at = line, at
            case told.PreparedLine():
                self.prepared, self.begun = line, True  # older records don't say that it begins
                self._settle(line.shard_samples)
                self.drawn_with = self.drawn_with or line.numeric_class
                self.verification.prepared(line)
            case told.FinishedLine() | told.FailedLine() | told.CancelledLine():
                self.ended = line
            case told.ResourcesUsedLine():
                packed = self.used.setdefault(line.worker, Packed("ddqqd"))
                for sample in line.samples:
                    packed.add("", *sample)
            case _ if isinstance(line, WorkerChange):
                self._change(at, line)

    def _settle(self, shard_samples: Sequence[int]) -> None:
        """Give the spec the number of meetings that follows from the examples of the shards."""
        if self.submitted is not None and self.spec.get("meet") == AUTO:
            meet = meetings_of(shard_samples, self.spec["batch_size"], self.spec["last_batch"])
            spec = {**self.spec, "meet": meet}
            self.submitted = msgspec.structs.replace(self.submitted, spec=spec)

    def _assign(self, at: float, line: told.AssignedLine) -> None:
        attempt = self.round(line.round).attempt(line.shard, line.attempt)
        if attempt.assigned is None:
            attempt.place, self._assigned = self._assigned, self._assigned + 1
        attempt.begin, attempt.assigned, self.begun = at, line, True
        if self.halts:
            since, until = self.halts[-1]
            self.halts[-1] = since, min(at, until)
        self.start = min(self.start, at) if self._assigned > 1 else at

    def _accept(self, at: float, line: told.UpdatedLine) -> None:
        """Note an update, which counts from now on, and makes other attempts needless."""
        of_round = self.round(line.round)
        attempt = of_round.attempt(line.shard, line.attempt)
        former = of_round.accepted.get(line.shard)
        if former is not None and former is not attempt:
            of_round.retrained.add(line.shard)
        of_round.accepted[line.shard] = self.waiting[line.round, line.shard] = attempt
        attempt.updated, attempt.end, attempt.outcome = line, at, "trained"
        self._last_stop = at
        attempt.stop, attempt.stopped_by = at, ""
        if len(of_round.attempts[line.shard]) > 1:
            of_round.stop_all(line.shard, at, OVERTAKEN)
        joined = self.joined.get(line.worker)
        attempt.numeric_class = joined.class_for(self.spec.get("device")) if joined else ""
        self.trained.setdefault(attempt.numeric_class, {})[line.worker] = None
        if line.trial:
            self.verification.updated(line.worker, attempt.numeric_class, line.trial)

    def _fail(self, at: float, line: told.AttemptFailedLine) -> None:
        """Note a failed attempt; if its update had been accepted, that no longer counts."""
        of_round, task = self.round(line.round), (line.round, line.shard)
        attempt = of_round.attempt(line.shard, line.attempt)
        had_counted = of_round.accepted.get(line.shard) is attempt
        if had_counted:
            del of_round.accepted[line.shard]
            of_round.retrained.add(line.shard)
            if self.waiting.get(task) is attempt:
                del self.waiting[task]
        self.failures.append((line, had_counted))
        attempt.failed, attempt.outcome = line, outcome_of(line.failure)
        attempt.end = at if attempt.end is None else attempt.end
        self._last_stop = at
        attempt.stop_at(at, PAUSED if self.paused and line.failure in MOVED else line.failure)
        others = of_round.attempts[line.shard].values()
        # A copy that stops moves nothing, because the shard stays with another worker.
        if attempt.stopped_by in MOVED and all(other.stop is not None for other in others):
            of_round.moves += 1

    def _drop(self, at: float, line: told.DroppedLine) -> None:
        of_round = self.round(line.round)
        for shard in line.shards:
            of_round.dropped[shard] = at
            of_round.stop_all(shard, at, DROPPED)

    def _take_version(self, at: float, line: told.AggregatedLine) -> None:
        """Note a version: a round's, or one of several between the ends of two rounds."""
        if self.halts:
            began = at - line.seconds - line.train_seconds
            seconds = self.working_seconds(began, at) - line.seconds
            line = msgspec.structs.replace(line, train_seconds=seconds)
        if not line.parts:
            of_round = self.round(line.round)
            tasks = [(line.round, shard) for shard in sorted(of_round.accepted)]
            of_round.version, of_round.closed = line, at
        else:
            tasks = list(line.parts)
        updates = {
            (number, shard): self.round(number).accepted[shard]
            for number, shard in tasks
            if shard in self.round(number).accepted
        }
        self.versions[line.version] = RecordedVersion(at, line, updates)
        for task in tasks:
            self.waiting.pop(task, None)
        if line.parts:
            self._unclosed.append(line)
            for number, _ in line.parts:
                self._apply(at, line, self.round(number))

    def _apply(self, at: float, line: told.AggregatedLine, of_round: RecordedRound) -> None:
        """Count an update that a version has taken; the last one closes its round."""
        of_round.applied += 1
        shards = self.submitted.shards if self.submitted is not None else 0
        if of_round.closed is None and of_round.applied + len(of_round.dropped) >= shards > 0:
            of_round.version, of_round.closed = self._together(line, of_round), at
            self._unclosed = []

    def _together(self, last: told.AggregatedLine, of_round: RecordedRound) -> told.AggregatedLine:
        """Merge the versions since the end of another round into one, which ends this round."""
        updates = self.updates(of_round.number)
        samples = sum(update.samples for update in updates)
        return msgspec.structs.replace(
            last,
            round=of_round.number,
            bytes=sum(version.bytes for version in self._unclosed),
            seconds=sum(version.seconds for version in self._unclosed),
            train_seconds=sum(version.train_seconds for version in self._unclosed),
            loss=sum(update.samples * update.loss for update in updates) / (samples or 1),
        )

    def _change(self, at: float, line: WorkerChange) -> None:
        """Note what happened to a worker, unless it was present when work began."""
        if isinstance(line, told.WorkerJoinedLine):
            self.joined[line.worker] = line
            # A worker that registers with the next manager was present all the time.
            is_late = self._assigned > 0 and line.worker not in self._present
            self._present.add(line.worker)
            if not is_late:
                return
        if isinstance(line, told.WorkerLeftLine):
            self._present.discard(line.worker)
        self.changes.append((at, line))


def outcome_of(failure: str) -> Outcome:
    """Distinguish moves, and attempts that were no longer needed, from failures."""
    if failure == FailureKind.CANCELLED:
        return "stopped"
    return "moved" if failure in BLAMELESS else "failed"
