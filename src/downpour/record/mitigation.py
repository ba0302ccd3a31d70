"""The cost of a run's stragglers and the effect of the policy, from its record alone.

We have to estimate the time of an epoch in which the manager waits for every worker, because no
such epoch took place. If the manager took work from a worker, or did not wait for it, we use the
forecast of that moment. Everything else is measured. A move costs the loading and publishing of the
worker that finished the shard. The ideal epoch takes as long as if every worker had been as fast as
the median one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from statistics import median

from downpour.record.attempt_lines import (
    AssignedLine,
    AttemptFailedLine,
    ForeseenLine,
    HandOverAskedLine,
    SavedLine,
    UpdatedLine,
)
from downpour.record.record_lines import (
    AggregatedLine,
    DroppedLine,
    PreparedLine,
    RecordLine,
    ResizedLine,
)

_OfRound = (
    AssignedLine
    | ForeseenLine
    | SavedLine
    | HandOverAskedLine
    | DroppedLine
    | ResizedLine
    | UpdatedLine
    | AttemptFailedLine
    | AggregatedLine
)

_MOVED = {"handed_over", "withdrawn"}
_DROPPED, _OVERTAKEN = "dropped", "overtaken"
_LEFT = {*_MOVED, _DROPPED, _OVERTAKEN}
"""Ends of attempts without an update, because a decision stopped them."""

_WAITED, _WAITED_SECONDS = 0.25, 1.0
"""How much longer than the ideal an epoch must be for a table: as a share of it, in seconds."""
_EXTRA_WORK = 0.01
_WORTH_SAVING = 0.05
"""As a share of an ideal epoch. Tasks of healthy workers differ by this much, so dividing by less
would turn noise into percentages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stragglers:
    """The cost of stragglers in an epoch or a run, and the effect of the policy.

    `round_seconds` run from the first assignment to the last update that counts, or to the closing.
    `ideal_seconds` are the seconds of an epoch in which every task takes the median time, with all
    its parts if it was handed over. `wait_seconds` is the estimated time of waiting for every
    worker. `mitigation` is the saved part of the difference: 1 at best, below 0 if waiting would
    have been faster. It is an estimate, too. It is None if the policy did nothing or could gain
    nothing. `extra_work` is a ratio: the seconds of lost work, and of loading and publishing again
    for a move, over the seconds of work that counts. `gradient_lost` is the share of samples that
    were left out. `moves` is how often a shard was taken from a worker for another one.
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
        return bool(
            self.moves or self.gradient_lost or (self.extra_work or 0.0) > _EXTRA_WORK or long
        )


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


def costs_of(record: Sequence[tuple[float, RecordLine]]) -> dict[int, Cost]:
    """Compute the cost of each round that became a model, by its number."""
    rounds: dict[int, _Round] = {}
    shard_samples: tuple[int, ...] = ()
    for at_seconds, fact in record:
        if isinstance(fact, PreparedLine):
            shard_samples = fact.shard_samples
        elif isinstance(fact, _OfRound):
            rounds.setdefault(fact.round, _Round()).take(at_seconds, fact)
    complete = ((n, r) for n, r in rounds.items() if r.aggregated and r.winners)
    return {number: each.cost(shard_samples) for number, each in complete}


def stragglers_of(costs: Collection[Cost]) -> Stragglers:
    """Sum up one epoch or many."""
    known = [cost.wait_seconds for cost in costs if cost.wait_seconds is not None]
    useful = sum(cost.useful_seconds for cost in costs)
    samples = sum(cost.samples for cost in costs)
    dropped = sum(cost.dropped_samples for cost in costs)
    return Stragglers(
        round_seconds=sum(cost.seconds for cost in costs),
        ideal_seconds=sum(cost.ideal_seconds for cost in costs),
        wait_seconds=sum(known) if len(known) == len(costs) else None,
        mitigation=_mitigation(costs),
        extra_work=sum(cost.lost_seconds for cost in costs) / useful if useful > 0 else None,
        gradient_lost=dropped / samples if samples else 0.0,
        moves=sum(cost.moves for cost in costs),
    )


def _mitigation(costs: Collection[Cost]) -> float | None:
    """Return the saved part of the cost of waiting, over the epochs whose cost is known."""
    known = [(cost, cost.wait_seconds) for cost in costs if cost.wait_seconds is not None]
    ideal = sum(cost.ideal_seconds for cost, _ in known)
    saved = sum(wait - cost.seconds for cost, wait in known)
    to_save = sum(wait for _, wait in known) - ideal
    decided = any(cost.decided for cost, _ in known)
    return saved / to_save if decided and to_save > _WORTH_SAVING * ideal else None


@dataclass(slots=True)
class _Attempt:
    """One try at a shard; `predicted_seconds` run from its beginning, `saved` is by step.

    `overhead_seconds` is the time of loading and publishing.
    """

    worker: str
    began: float
    from_step: int
    predicted_seconds: float | None
    saved: dict[int, float] = field(default_factory=dict)
    overhead_seconds: float = 0.0
    ended: float | None = None
    end: str = ""

    def stop(self, at_seconds: float, how: str) -> None:
        if self.ended is None:
            self.ended, self.end = at_seconds, how

    @property
    def seconds(self) -> float:
        return max(0.0, self.ended - self.began) if self.ended is not None else 0.0


@dataclass(slots=True)
class _Round:
    """The attempts of one round, by shard and number, and which of them counts."""

    attempts: dict[int, dict[int, _Attempt]] = field(default_factory=dict)
    winners: dict[int, int] = field(default_factory=dict)
    closed_at: dict[int, float] = field(default_factory=dict)
    resized: tuple[int, ...] = ()
    moves: int = 0
    asked: bool = False
    aggregated: bool = False

    def take(self, at_seconds: float, fact: _OfRound) -> None:
        match fact:
            case AssignedLine():
                self.attempts.setdefault(fact.shard, {})[fact.attempt] = _Attempt(
                    fact.worker, at_seconds, fact.from_step, fact.q50_seconds
                )
            case DroppedLine():
                for shard in fact.shards:
                    self.closed_at[shard] = at_seconds
                    self._stop_all(shard, at_seconds, _DROPPED)
            case ResizedLine():
                self.resized = fact.samples
            case HandOverAskedLine():
                self.asked = True
            case AggregatedLine():
                self.aggregated = True
            case _:
                attempt = self.attempts.get(fact.shard, {}).get(fact.attempt)
                if attempt is not None:
                    self._take_of_attempt(at_seconds, fact, attempt)

    def _take_of_attempt(
        self,
        at_seconds: float,
        fact: ForeseenLine | SavedLine | AttemptFailedLine | UpdatedLine,
        attempt: _Attempt,
    ) -> None:
        match fact:
            case ForeseenLine():
                attempt.predicted_seconds = fact.q50_seconds
            case SavedLine():
                attempt.saved.setdefault(fact.step, at_seconds)
            case AttemptFailedLine():
                attempt.stop(at_seconds, fact.failure)
                tried = self.attempts[fact.shard].values()
                if fact.failure in _MOVED and all(other.ended is not None for other in tried):
                    self.moves += 1
                if self.winners.get(fact.shard) == fact.attempt:  # the manager refused its update
                    del self.winners[fact.shard]
            case UpdatedLine():
                attempt.ended, attempt.end = at_seconds, ""
                attempt.overhead_seconds = fact.load_seconds + fact.publish_seconds
                self.winners[fact.shard] = fact.attempt
                self._stop_all(fact.shard, at_seconds, _OVERTAKEN)

    def _stop_all(self, shard: int, at_seconds: float, how: str) -> None:
        for attempt in self.attempts.get(shard, {}).values():
            attempt.stop(at_seconds, how)

    def cost(self, shard_samples: tuple[int, ...]) -> Cost:
        samples = self.resized or shard_samples
        attempts = [a for tried in self.attempts.values() for a in tried.values()]
        began = min(attempt.began for attempt in attempts)
        ended = max([*self._won_at().values(), *self.closed_at.values()])
        useful = {shard: dict(self._useful(shard)) for shard in self.winners}
        tasks = [sum(parts.values()) for parts in useful.values()]
        moving = sum(
            (len(parts) - 1) * self.attempts[shard][self.winners[shard]].overhead_seconds
            for shard, parts in useful.items()
        )
        lost = (
            attempt.seconds - useful.get(shard, {}).get(number, 0.0)
            for shard, tried in self.attempts.items()
            for number, attempt in tried.items()
        )
        workers = len({attempt.worker for attempt in attempts})
        return Cost(
            seconds=ended - began,
            ideal_seconds=median(tasks) * ceil(len(self.attempts) / workers),
            wait_seconds=self._wait_seconds(began, shard_samples),
            useful_seconds=sum(tasks) - moving,
            lost_seconds=sum(lost) + moving,
            samples=sum(samples),
            dropped_samples=sum(samples[shard] for shard in self.closed_at),
            moves=self.moves,
            decided=bool(
                self.asked
                or self.resized
                or self.closed_at
                or any(attempt.end in _LEFT for attempt in attempts)
            ),
        )

    def _won_at(self) -> dict[int, float]:
        won = ((s, self.attempts[s][number].ended) for s, number in self.winners.items())
        return {shard: at for shard, at in won if at is not None}

    def _useful(self, shard: int) -> Iterator[tuple[int, float]]:
        """Yield the attempts that count, with their useful seconds: the last, then earlier ones."""
        tried = self.attempts[shard]
        number = self.winners[shard]
        yield number, tried[number].seconds
        while step := tried[number].from_step:
            began = tried[number].began
            sources = [n for n in tried if n < number and step in tried[n].saved]
            sources = [n for n in sources if tried[n].saved[step] <= began]
            if not sources:
                return
            number = max(sources, key=lambda n: tried[n].saved[step])
            source = tried[number]
            saved = min(max(0.0, source.saved[step] - source.began), source.seconds)
            yield number, source.seconds if source.end == "handed_over" else saved

    def _wait_seconds(self, began: float, shard_samples: tuple[int, ...]) -> float | None:
        """Estimate the round's time if the manager had waited for every worker; None if unknown."""
        longest = 0.0
        for shard in {*self.attempts, *self.closed_at}:
            ended = self._would_have_ended(shard)
            if ended is None:
                return None
            scale = shard_samples[shard] / self.resized[shard] if self.resized else 1.0
            longest = max(longest, scale * (ended - began))
        return longest

    def _would_have_ended(self, shard: int) -> float | None:
        """Say when the first worker that did not fail at a shard would have finished its update."""
        tried = self.attempts.get(shard, {})
        for number, attempt in sorted(tried.items()):
            if attempt.ended is None or self.winners.get(shard) == number:
                return attempt.ended
            if attempt.end in _LEFT:
                predicted = attempt.predicted_seconds
                return None if predicted is None else max(attempt.ended, attempt.began + predicted)
        return self.closed_at.get(shard)
