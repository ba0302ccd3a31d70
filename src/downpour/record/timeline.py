"""When each worker trained what, the decisions about it in words, and the cost of stragglers.

Seconds count from the first assignment, on the manager's clock. The policy's savings are estimates
from the record alone (docs/internals/decisions.md, "Mitigation is estimated from the record"). A
move costs the loading and publishing of the worker that finished the shard.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, inf
from operator import attrgetter
from statistics import median
from typing import Any, Literal

import msgspec

from downpour.record import record_lines as told
from downpour.record.record_lines import Sample, WorkerChange
from downpour.record.tables import (
    DROPPED,
    MOVED,
    OVERTAKEN,
    Outcome,
    RecordedAttempt,
    RecordedRound,
    Tables,
)


class AttemptSpan(msgspec.Struct, frozen=True, gc=False):
    """One attempt at a shard; `last` says whether the end of its round waited for it.

    Rounds count from 1, shards and attempts from 0.
    """

    worker: str
    round: int
    shard: int
    attempt: int
    begin_seconds: float
    end_seconds: float
    outcome: Outcome
    last: bool = False


_BEGIN = attrgetter("begin", "shard")
SpanFields = tuple[str, int, int, int, float, float, Outcome, bool]


def span_fields(of_round: RecordedRound, now: float) -> Iterator[SpanFields]:
    """Yield the fields of a round's spans in order, with seconds of the record's clock."""
    last = of_round.last()
    for attempt in sorted(of_round.assigned(), key=_BEGIN):
        assert attempt.assigned is not None  # noqa: S101 - as `assigned` says
        end, outcome = of_round.end_of(attempt)
        ended = max(attempt.begin, now if end is None else end)
        task = of_round.number, attempt.shard, attempt.number
        yield attempt.assigned.worker, *task, attempt.begin, ended, outcome, attempt is last


def span_of(start: float, fields: SpanFields) -> AttemptSpan:
    """Return the span of these fields, whose seconds count from the first assignment."""
    worker, number, shard, attempt, begin, end, outcome, last = fields
    seconds = begin - start, end - start
    return AttemptSpan(worker, number + 1, shard, attempt, *seconds, outcome, last)


def attempt_spans(tables: Tables) -> tuple[AttemptSpan, ...]:
    """List the attempts in the order in which they began."""
    rounds = tables.rounds.values()
    fields = (each for of_round in rounds for each in span_fields(of_round, tables.now))
    spans = (span_of(tables.start, each) for each in fields)
    return tuple(sorted(spans, key=attrgetter("begin_seconds", "shard")))


def disturbed_seconds(tables: Tables) -> tuple[float, ...]:
    """List when someone slowed or killed a process on purpose; below 0 before any assignment."""
    disturbed = (at for at, line in tables.changes if isinstance(line, told.DisturbedLine))
    return tuple(at - tables.start for at in disturbed)


def resources(tables: Tables) -> Mapping[str, Sequence[Sample]]:
    """Return the samples of each worker's resources in order of time."""
    for samples in tables.used.values():
        samples.make = partial(_sample, tables.start)
        samples.sort(0)
    return tables.used


def _sample(start: float, _: str, at: float, *others: Any) -> Sample:
    return Sample(at - start, *others)


def worker_changes(tables: Tables) -> tuple[str, ...]:
    """Return a line for each change of the workers, in the order in which they happened."""
    return tuple(_change(line, at - tables.submitted_at) for at, line in tables.changes)


def _change(line: WorkerChange, seconds: float) -> str:
    after = f"after {seconds:.1f} s"
    match line:
        case told.WorkerJoinedLine():
            return f"{line.worker} joined {after}"
        case told.WorkerLeftLine():
            return f"{line.worker} {'was lost' if line.lost else 'left'} {after}: {line.reason}"
        case told.OtherPackagesLine():
            return f"{line.worker} has {'; '.join(line.packages)}"
        case told.QuarantinedLine():
            return f"{line.worker} failed an audit {after}: {line.reason}"
        case told.DisturbedLine():
            return f"{line} on purpose, {after}"


DecisionKind = Literal["hand-over", "drop", "resize", "worker", "differ", "disturb", "wait", "end"]


@dataclass(frozen=True, slots=True)
class RecordedDecision:
    """A decision: its kind, a few words, and details; the detail `reason` says why."""

    kind: DecisionKind
    name: str
    details: Mapping[str, Any]

    def __str__(self) -> str:
        reason = self.details.get("reason") or self.details.get("what")
        return f"{self.name}: {reason}" if reason else self.name


def decision(line: told.RecordLine) -> RecordedDecision | None:  # noqa: C901 - an arm a line
    """Return the decision in a line; None if the line is no decision."""
    kind: DecisionKind
    details: dict[str, Any] = {"reason": getattr(line, "reason", None) or None}
    match line:
        case told.HandOverAskedLine():
            kind, name = "hand-over", f"hand over from {line.worker} to {line.meant_for}"
            details = {"shard": line.shard, "attempt": line.attempt, **details}
        case told.DroppedLine():
            shards = ", ".join(map(str, line.shards))
            kind, name = "drop", f"close round {line.round + 1} without shards {shards}"
        case told.ResizedLine():
            kind, name = "resize", f"resize round {line.round + 1}"
            details = {"samples": list(line.samples), **details}
        case told.RescheduledLine():
            kind, name = "wait", line.change
        case told.WorkerRequestedLine():
            kind, name = "worker", "ask for one more worker"
        case told.ExplainedLine(shard=None):
            kind, name, details = "wait", line.reason, {}
        case told.ExplainedLine():
            kind, name = "wait", f"shard {line.shard} stays at {line.worker}"
            details = {"shard": line.shard, **details}
        case told.DisturbedLine():
            kind, name, details = "disturb", f"disturb {line.who}", {"what": str(line)}
        case told.ContradictedLine():
            return RecordedDecision("differ", "updates differ", {"reason": str(line)})
        case told.QuarantinedLine():
            kind, name = "worker", f"{line.worker} failed an audit"
        case told.FinishedLine() | told.FailedLine() | told.CancelledLine():
            kind, name = "end", told.kind_of(line)
        case _:
            return None
    of_round = {"round": line.round + 1} if hasattr(line, "round") else {}
    return RecordedDecision(kind, name, {**of_round, **details})


_GOING = told.WorkerLeftLine | told.QuarantinedLine
_LEFT = {*MOVED, DROPPED, OVERTAKEN}
"""Ends of attempts without an update, because a decision stopped them."""

_WAITED, _WAITED_SECONDS = 0.25, 1.0
"""How much longer than the ideal an epoch must be for a table: as a share of it, in seconds."""
_EXTRA_WORK = 0.01
_WORTH_SAVING = 0.05
"""As a share of an ideal epoch. Tasks of healthy workers differ by this much, so dividing by less
would turn noise into percentages."""

_FEW_STEPS, _MANY_STEPS, _LONG_SECONDS = 5, 10, 1.0
"""When we take the pace of an attempt's steps for that of the rest, and when its forecast. In
rounds of 0.6 s with three steps, forecasts said up to twice what an attempt then took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stragglers:
    """The cost of stragglers in an epoch or a run, and the effect of the policy.

    `round_seconds` run from the first assignment to the last update that counts, or to the closing.
    `ideal_seconds` are the seconds of an epoch in which every task takes the median time, with all
    its parts if it was handed over. With uneven shards an epoch may take less, and is then its own
    ideal. `wait_seconds` is the estimated time of waiting for every worker. `mitigation` is the
    saved part of the difference: 1 at best, below 0 if waiting would have been faster. It is an
    estimate, too. It is None if the policy did nothing or could gain nothing. `extra_work` is a
    ratio: the seconds of lost work, and of loading and publishing again for a move, over the
    seconds of work that counts. `gradient_lost` is the share of samples that were left out. `moves`
    is how often a shard was taken from a worker for another one.
    """

    round_seconds: float
    ideal_seconds: float
    wait_seconds: float | None
    mitigation: float | None
    extra_work: float | None
    gradient_lost: float
    moves: int

    @property
    def is_of_note(self) -> bool:
        """Whether a policy moved, copied or dropped a shard, or workers waited for a long time."""
        waited = self.round_seconds - self.ideal_seconds
        long = waited > max(_WAITED_SECONDS, _WAITED * self.ideal_seconds)
        extra = (self.extra_work or 0.0) > _EXTRA_WORK
        return bool(self.moves or self.gradient_lost or extra or long)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """An epoch's time, and what it might have been; `wait_seconds` is None if unknown."""

    seconds: float
    ideal_seconds: float
    wait_seconds: float | None
    useful_seconds: float
    lost_seconds: float
    samples: int
    dropped_samples: int
    moves: int
    decided: bool

    @property
    def lossless(self) -> bool:
        """Whether no work was lost and no sample was left out."""
        return self.lost_seconds <= 0 and self.dropped_samples == 0


def cost_of(tables: Tables, of_round: RecordedRound, paces: dict[str, float]) -> Cost | None:
    """Compute the cost of a round that became a model; None if no worker trained in it.

    `paces` are the seconds per sample of each worker in the rounds before; this adds the round's.
    """
    shard_samples = tables.prepared.shard_samples if tables.prepared is not None else ()
    attempts = of_round.assigned()
    if not of_round.accepted or not attempts:
        return None
    samples = of_round.samples or shard_samples
    began = min([attempt.begin for attempt in attempts])
    updated = [attempt.stop or 0.0 for attempt in of_round.accepted.values()]
    tasks = [_seconds(attempt) for attempt in of_round.accepted.values()]
    moving = lost = 0.0
    if len(attempts) > len(tasks) or any(
        one.assigned.from_step for one in attempts if one.assigned
    ):
        useful = {shard: _useful(of_round, shard) for shard in of_round.accepted}
        tasks = [sum(parts.values()) for parts in useful.values()]
        moving = sum(
            (len(parts) - 1) * _files_seconds(of_round.accepted[shard])
            for shard, parts in useful.items()
        )
        lost = sum(
            _seconds(one) - useful.get(one.shard, {}).get(one.number, 0.0) for one in attempts
        )
    workers = {one.assigned.worker for one in attempts if one.assigned}
    spared, would_end = _spared(tables, of_round, paces)
    seconds = tables.working_seconds(began, max([*updated, *of_round.dropped.values()]))
    is_plain = sum(map(len, of_round.attempts.values())) == len(tasks)
    if not is_plain or of_round.samples or of_round.dropped or spared:
        wait_seconds = _wait_seconds(tables, of_round, began, would_end)
    else:
        wait_seconds = seconds
    _note_paces(of_round, paces)
    return Cost(
        seconds=seconds,
        ideal_seconds=min(
            seconds, median(tasks) * ceil(len(of_round.attempts) / len(workers | spared))
        ),
        wait_seconds=wait_seconds,
        useful_seconds=sum(tasks) - moving,
        lost_seconds=lost + moving,
        samples=sum(samples),
        dropped_samples=sum(samples[shard] for shard in of_round.dropped),
        moves=of_round.moves,
        decided=bool(
            of_round.has_hand_overs
            or spared
            or of_round.samples
            or of_round.dropped
            or not _LEFT.isdisjoint([attempt.stopped_by for attempt in attempts])
        ),
    )


def stragglers_of(costs: Collection[Cost]) -> Stragglers:
    """Sum up one epoch or many."""
    known = [cost.wait_seconds for cost in costs if cost.wait_seconds is not None]
    useful = sum([cost.useful_seconds for cost in costs])
    samples = sum([cost.samples for cost in costs])
    dropped = sum([cost.dropped_samples for cost in costs])
    return Stragglers(
        round_seconds=sum([cost.seconds for cost in costs]),
        ideal_seconds=sum([cost.ideal_seconds for cost in costs]),
        wait_seconds=sum(known) if len(known) == len(costs) else None,
        mitigation=_mitigation(costs),
        extra_work=sum([cost.lost_seconds for cost in costs]) / useful if useful > 0 else None,
        gradient_lost=dropped / samples if samples else 0.0,
        moves=sum([cost.moves for cost in costs]),
    )


def _mitigation(costs: Collection[Cost]) -> float | None:
    """Return the saved part of the cost of waiting, over the epochs whose cost is known."""
    known = [(cost, cost.wait_seconds) for cost in costs if cost.wait_seconds is not None]
    if not any(cost.decided for cost, _ in known):
        return None
    ideal = sum(cost.ideal_seconds for cost, _ in known)
    saved = sum(wait - cost.seconds for cost, wait in known)
    to_save = sum(wait for _, wait in known) - ideal
    return saved / to_save if to_save > _WORTH_SAVING * ideal else None


def _seconds(attempt: RecordedAttempt) -> float:
    return max(0.0, attempt.stop - attempt.begin) if attempt.stop is not None else 0.0


def _files_seconds(attempt: RecordedAttempt) -> float:
    """Return the seconds in which the worker loaded and published."""
    update = attempt.updated
    return update.load_seconds + update.publish_seconds if update is not None else 0.0


def _useful(of_round: RecordedRound, shard: int) -> dict[int, float]:
    """Return the useful seconds of the attempts that count: the accepted one, and earlier ones."""
    attempt = of_round.accepted[shard]
    useful = {attempt.number: _seconds(attempt)}
    while attempt.assigned is not None and (step := attempt.assigned.from_step):
        begin = attempt.begin
        sources = [
            (at, source)
            for source in of_round.attempts[shard].values()
            for at, line in source.saved
            if source.number < attempt.number and line.step == step and at <= begin
        ]
        if not sources:
            break
        at, attempt = max(sources, key=lambda dated: dated[0])
        seconds = _seconds(attempt)
        saved = min(max(0.0, at - attempt.begin), seconds)
        useful[attempt.number] = seconds if attempt.stopped_by == "handed_over" else saved
    return useful


def _spared(
    tables: Tables, of_round: RecordedRound, paces: Mapping[str, float]
) -> tuple[set[str], dict[int, float]]:
    """Return the workers that stood by while another one began several shards of the round.

    Also return when the fastest of them would have finished each shard that waited for the other.
    """
    version, attempts = of_round.version, of_round.assigned()
    is_apart = version is None or version.parts or tables.spec.get("overlap")
    if is_apart or tables.spec.get("policy", "wait") == "wait":
        return set(), {}
    began, busy, late = attempts[0].begin, set[str](), list[RecordedAttempt]()
    for attempt in attempts:
        assert attempt.assigned is not None  # noqa: S101 - as `assigned` says
        is_first = attempt.number == min(of_round.attempts[attempt.shard])
        late += [attempt] if is_first and attempt.assigned.worker in busy else []
        busy.add(attempt.assigned.worker)
    gone = {line.worker for at, line in tables.changes if isinstance(line, _GOING) and at <= began}
    idle = paces.keys() - busy - gone
    if not late or not idle:
        return set(), {}
    pace = min(paces[worker] for worker in idle)
    updates = [
        of_round.accepted[one.shard].updated for one in late if one.shard in of_round.accepted
    ]
    return idle, {one.shard: began + pace * one.samples for one in updates if one}


def _note_paces(of_round: RecordedRound, paces: dict[str, float]) -> None:
    """Note the seconds per sample of the first worker of each shard, if no policy had moved it."""
    for shard, accepted in of_round.accepted.items():
        attempts = of_round.attempts[shard]
        first, ended = attempts[min(attempts)], _would_have_ended(of_round, shard)
        was_sound = first is accepted or first.stopped_by in _LEFT
        if was_sound and ended is not None and first.assigned and accepted.updated:
            seconds = ended - first.begin
            paces[first.assigned.worker] = seconds / max(1, accepted.updated.samples)


def _wait_seconds(
    tables: Tables, of_round: RecordedRound, began: float, would_end: Mapping[int, float]
) -> float | None:
    """Estimate the round's time if the manager had waited for every worker; None if unknown."""
    shard_samples = tables.prepared.shard_samples if tables.prepared is not None else ()
    longest = 0.0
    for shard in {*of_round.attempts, *of_round.dropped}:
        ended = would_end.get(shard) or _would_have_ended(of_round, shard)
        if ended is None:
            return None
        scale = shard_samples[shard] / of_round.samples[shard] if of_round.samples else 1.0
        longest = max(longest, scale * tables.working_seconds(began, ended))
    return longest


def _would_have_ended(of_round: RecordedRound, shard: int) -> float | None:
    """Say when the first worker that did not fail at a shard would have finished its update."""
    attempts, accepted = of_round.attempts.get(shard, {}), of_round.accepted.get(shard)
    for attempt in map(attempts.__getitem__, sorted(attempts)):
        if attempt.stop is None or accepted is attempt:
            return attempt.stop
        if attempt.stopped_by in _LEFT:
            predicted = _predicted_seconds(of_round, attempt)
            return None if predicted is None else max(attempt.stop, attempt.begin + predicted)
    return of_round.dropped.get(shard)


def _predicted_seconds(of_round: RecordedRound, attempt: RecordedAttempt) -> float | None:
    """Predict how long an attempt would have taken; None if too little is known.

    Its last forecast is good once the worker has made some steps in some seconds. Before that, we
    take the pace up to its snapshot. After few steps, which chance made slow, the rest goes on as
    fast as in earlier rounds.
    """
    if attempt.assigned is None:
        return None
    began, earlier = attempt.assigned.from_step, attempt.assigned.q50_seconds
    steps = max(one.updated.steps for one in of_round.accepted.values() if one.updated)
    # A worker's first forecasts err more, because the predictor knows no other task of it.
    many = max(_MANY_STEPS, steps / 4) if earlier is None else _MANY_STEPS
    for forecast in attempt.foreseen[-1:]:
        made = forecast.done * steps - began
        if made >= many and forecast.elapsed_seconds >= _LONG_SECONDS:
            return forecast.q50_seconds
    accepted = of_round.accepted.get(attempt.shard)
    if not attempt.saved or not accepted or not accepted.updated:
        return earlier
    at, line = attempt.saved[-1]
    made = line.step - began
    # Its time until then includes loading, which takes others this share of a whole attempt.
    shares = [*map(_loading_share, of_round.accepted.values())]
    loading = max([one for one in shares if one is not None], default=None)
    if earlier is None and (made < _FEW_STEPS or loading is None):
        return None
    share = made / max(1, accepted.updated.steps - began)
    whole = (at - attempt.begin) / (share + (loading or 0.0) * (1 - share)) if share > 0 else inf
    if made >= _MANY_STEPS or earlier is None:
        return whole
    return min(whole, at - attempt.begin + (1 - share) * earlier)


def _loading_share(attempt: RecordedAttempt) -> float | None:
    """Return the share of an attempt in which its worker loaded; None if it had no whole shard."""
    if attempt.assigned is None or attempt.assigned.from_step or attempt.updated is None:
        return None
    seconds = _seconds(attempt)
    return min(1.0, attempt.updated.load_seconds / seconds) if seconds > 0 else None
