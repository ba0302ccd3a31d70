"""Reads from a record how fast its workers were at each moment, and all other durations.

We know a worker's speed while it trained: from its updates, its snapshots and its reports at the
quarters of its tasks, at which a forecast was made. Between two tasks we use the speed of the next
one. Seconds count from the first assignment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean, median
from typing import TypeVar

from downpour.base.errors import SpecError
from downpour.base.states import BLAMELESS, FailureKind
from downpour.core.spec import ResolvedSpec
from downpour.record import record_lines as told
from downpour.record.record_lines import Dated
from downpour.record.tables import RecordedAttempt, Tables
from downpour_lab.policylab.conditions import Curve

Record = Sequence[Dated]

_EXPECTED = {*BLAMELESS, FailureKind.LOST}
"""How attempts also end in a simulation."""
_SHORTEST_SECONDS = 1e-6
_TOLERANCE = 0.05
"""In shards of the usual size: roughly the error of a progress report."""
_TELLING = 0.5
"""In shards of the usual size: how much a worker must train until its rate tells the usual one."""
_Name = TypeVar("_Name")
_Each = TypeVar("_Each")
_Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """When a worker was away; until infinity if it did not come back."""

    from_seconds: float
    until_seconds: float = inf
    lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedWorker:
    """A worker: the work it would have done by each moment, in shards of the usual size.

    Its first task took `first_load_seconds` to load, later ones `load_seconds`. After a task's last
    step, the manager learned of the update within `finish_seconds`.
    """

    name: str
    curve: Curve
    first_load_seconds: float
    load_seconds: float
    finish_seconds: float
    absences: tuple[Absence, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """A run according to its record: `seconds` from its first assignment to its last version.

    `sizes` are the shards' sizes, in shards of the usual size. Between the last update of a round
    and the first assignment of the next round, `between_seconds` passed. The `failed` attempts
    ended although no decision moved or stopped them.
    """

    experiment: str
    spec: ResolvedSpec
    rounds: int
    seconds: float
    sizes: tuple[float, ...]
    workers: tuple[RecordedWorker, ...]
    between_seconds: float
    saving_seconds: float
    failed: int

    @classmethod
    def of(cls, experiment: str, record: Record, fewest: int = 2) -> RecordedRun:
        """Take from a record everything that a simulation of the run needs.

        The run had at least the `fewest` workers.
        """
        return _Reading(experiment, record).run(fewest)


class _Reading:
    """A record's tables, with the attempts of each worker."""

    def __init__(self, experiment: str, record: Record) -> None:
        self._experiment = experiment
        self._tables = tables = Tables.of(record)
        assigned = [one for each in tables.rounds.values() for one in each.assigned()]
        self._attempts = sorted(assigned, key=lambda attempt: attempt.place)
        self._updates = [one.updated for one in self._attempts if one.updated is not None]
        self._steps = median([update.steps for update in self._updates] or [1])
        self._sizes = self._sizes_of_shards()
        self._by_worker = grouped((_assigned(one).worker, one) for one in self._attempts)
        changes = [(at - tables.start, line) for at, line in tables.changes]
        joined = ((ln.worker, at) for at, ln in changes if isinstance(ln, told.WorkerJoinedLine))
        left = ((ln.worker, (at, ln)) for at, ln in changes if isinstance(ln, told.WorkerLeftLine))
        self._joined, self._left = grouped(joined), grouped(left)

    def run(self, fewest: int) -> RecordedRun:
        spec, rounds = self._checked()
        workers = tuple(filter(None, map(self._worker, self._by_worker)))
        if len(workers) < fewest:
            accepted = (
                "only one worker trained it, so no policy could have divided the work differently"
            )
            raise SpecError("ID", self._experiment, accepted)
        return RecordedRun(
            experiment=self._experiment,
            spec=spec,
            rounds=rounds,
            seconds=self._end(),
            sizes=tuple(self._sizes.get(shard, 1.0) for shard in range(spec.shards)),
            workers=workers,
            between_seconds=self._between(spec, rounds),
            saving_seconds=median(update.publish_seconds for update in self._updates),
            failed=sum(line.failure not in _EXPECTED for line, _ in self._tables.failures),
        )

    def _checked(self) -> tuple[ResolvedSpec, int]:
        tables = self._tables
        if tables.submitted is None or not tables.versions or not self._updates:
            raise SpecError("ID", self._experiment, "has no finished round to learn from")
        spec = ResolvedSpec.make(tables.submitted.spec)
        if spec.in_step and not spec.overlap:
            return spec, max(version.line.round for version in tables.versions.values()) + 1
        if not isinstance(tables.ended, told.FinishedLine):
            accepted = f"must have finished, because rounds overlap in mode '{spec.mode}'"
            raise SpecError("ID", self._experiment, accepted)
        return spec, spec.rounds

    def _end(self) -> float:
        return max(version.at for version in self._tables.versions.values()) - self._tables.start

    def _sizes_of_shards(self) -> dict[int, float]:
        by_shard = grouped(
            (one.shard, one.updated.samples / _assigned(one).share)
            for one in self._attempts
            if one.updated is not None
        )
        samples = {shard: median(each) for shard, each in by_shard.items()}
        usual = fmean(samples.values()) if samples else 1.0
        return {shard: each / usual for shard, each in samples.items()}

    def _between(self, spec: ResolvedSpec, rounds: int) -> float:
        """Return the usual time from a round's last update to the beginning of the next round."""
        usual = median(version.line.seconds for version in self._tables.versions.values())
        if not spec.in_step or spec.overlap:
            return usual
        start = self._tables.start
        ends = ((one.round, (one.end or 0.0) - start) for one in self._attempts if one.updated)
        last = {number: max(several) for number, several in grouped(ends).items()}
        begun = grouped((one.round, one.begin - start) for one in self._attempts)
        gaps = [
            max(0.0, min(begun[number + 1]) - last[number])
            for number in range(rounds - 1)
            if number in last and number + 1 in begun
        ]
        return median(gaps) if gaps else usual

    # Workers

    def _worker(self, name: str) -> RecordedWorker | None:
        """Return a worker; None if the record doesn't show its speed."""
        updates = [one.updated for one in self._by_worker[name] if one.updated is not None]
        loads = [one.load_seconds for one in updates]
        usual_load = median(loads[1:] or loads or [0.0])
        curve = self._curve(name, usual_load)
        if curve is None:
            return None
        finish = [
            max(0.0, one.completion_seconds - one.load_seconds - one.train_seconds)
            for one in updates
        ]
        return RecordedWorker(
            name=name,
            curve=curve,
            first_load_seconds=loads[0] if loads else 0.0,
            load_seconds=usual_load,
            finish_seconds=fmean(finish or [0.0]),
            absences=self._absences(name),
        )

    def _curve(self, name: str, usual_load: float) -> Curve | None:
        """Return the work that a worker has done by each moment, in shards of the usual size."""
        seconds, done = [0.0], [0.0]
        rate = late_work = late_seconds = 0.0
        for points in sorted(self._stretch(one, usual_load) for one in self._by_worker[name]):
            begin = max(points[0][0], seconds[-1])
            rest = [one for one in points if one[0] > begin + _SHORTEST_SECONDS and one[1] > 0]
            if not rest:
                continue
            (end, work), before = rest[-1], done[-1]
            rate = work / (end - begin)
            if work >= _TELLING:
                late_work = late_seconds = 0.0
            late_work, late_seconds = late_work + work, late_seconds + end - begin
            if begin > seconds[-1]:
                before += (begin - seconds[-1]) * rate
                seconds.append(begin)
                done.append(before)
            for at, so_far in rest:
                seconds.append(at)
                done.append(max(done[-1], before + so_far))
        if not rate:
            return None
        # It continues at the rate since it began its last whole task. The rate of a last moment, or
        # of a small part that it handed over, may be far from its usual one.
        after = seconds[-1] + 1.0, done[-1] + late_work / late_seconds
        points = [*_simplified([*zip(seconds, done, strict=True)]), after]
        return Curve(*zip(*points, strict=True))

    def _stretch(self, attempt: RecordedAttempt, usual_load: float) -> list[_Point]:
        """Return an attempt's work by each moment; times ascend, and work never shrinks."""
        assigned, update = _assigned(attempt), attempt.updated
        start = self._tables.start
        before = assigned.from_step / (update.steps if update else self._steps)
        assigned_at = attempt.begin - start
        begin = assigned_at + (update.load_seconds if update else usual_load)
        reached = [(at - start, line.step / self._steps) for at, line in attempt.saved]
        reached += [(assigned_at + one.elapsed_seconds, one.done) for one in attempt.foreseen]
        if update is not None:
            end = begin + update.train_seconds
            reached = [(when, share) for when, share in reached if when < end] + [(end, 1.0)]
        work = self._sizes.get(assigned.shard, 1.0) * assigned.share
        points, so_far = [(begin, 0.0)], 0.0
        for when, share in sorted(reached):
            if when > points[-1][0]:
                so_far = max(so_far, (share - before) * work)
                points.append((when, so_far))
        return points

    def _absences(self, name: str) -> tuple[Absence, ...]:
        """Return when a worker was away: before it joined, and after it left."""
        end = self._end()
        tasks = [one.begin - self._tables.start for one in self._by_worker[name]]
        joined, left_at = self._joined.get(name, []), self._left.get(name, [])
        found = []
        if joined and 0.0 < joined[0] <= tasks[0] and all(at > joined[0] for at, _ in left_at):
            found.append(Absence(from_seconds=-inf, until_seconds=joined[0]))
        for at, left in left_at:
            # A worker that gets a task is present, even if its lines say otherwise.
            back = min((one for one in [*joined, *tasks] if one > at), default=inf)
            if at < end and back > 0.0:
                found.append(Absence(from_seconds=at, until_seconds=back, lost=left.lost))
        return tuple(found)


def _simplified(points: Sequence[_Point]) -> list[_Point]:
    """Leave out points that are within the tolerance of a line between the remaining ones.

    This is the algorithm of Ramer, Douglas and Peucker. A worker reports its progress in whole
    steps, and with a delay. So two points that are close together give a wrong speed.
    """
    kept, spans = {0, len(points) - 1}, [(0, len(points) - 1)]
    while spans:
        first, last = spans.pop()
        (begin, low), (end, high) = points[first], points[last]
        slope = (high - low) / (end - begin)
        far, at = max(
            (
                (abs(points[n][1] - low - (points[n][0] - begin) * slope), n)
                for n in range(first + 1, last)
            ),
            default=(0.0, first),
        )
        if far > _TOLERANCE:
            kept.add(at)
            spans += [(first, at), (at, last)]
    return [points[n] for n in sorted(kept)]


def grouped(pairs: Iterable[tuple[_Name, _Each]]) -> dict[_Name, list[_Each]]:
    """Group the second parts of pairs by their first parts, keeping the order."""
    groups: dict[_Name, list[_Each]] = {}
    for name, each in pairs:
        groups.setdefault(name, []).append(each)
    return groups


def _assigned(attempt: RecordedAttempt) -> told.AssignedLine:
    assert attempt.assigned is not None  # noqa: S101 - we ask the tables for assigned ones
    return attempt.assigned
