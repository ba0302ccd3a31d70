"""Keeps a ledger of what a simulated run spends: looks on, and never interferes.

A worker's time is useful where what it trained in it has counted in the end, whoever ended it;
what is left is extra: copies, what was begun again, what was dropped, and the time that moves take.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from downpour.scheduler import commands as do
from downpour.scheduler import events as on
from downpour.scheduler import facts
from downpour.simulator.environment import Observation, Observer, Timings
from downpour.values import AttemptId, ExperimentState


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOutcome:
    """What became of a round: its seconds, and the share of samples that were `lost`.

    `busy_seconds` of all workers at its attempts, `useful_seconds` of those that counted; how often
    a shard changed hands; and how many updates and snapshots were published. Which shards were
    `dropped`, and the `sizes` of all of them where the round was cut anew.
    """

    seconds: float
    lost: float = 0.0
    busy_seconds: float = 0.0
    useful_seconds: float = 0.0
    moves: int = 0
    updates: int = 0
    snapshots: int = 0
    dropped: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()


@dataclass(slots=True)
class _Attempt:
    """From when to when, from which snapshot on, and when it published its own."""

    begun_at: float
    snapshot: str | None
    ended_at: float | None = None
    saved_at: list[float] | None = None


@dataclass(slots=True)
class _Round:
    seconds: float = 0.0
    useful: float = 0.0
    moves: int = 0
    updates: int = 0
    snapshots: int = 0
    dropped: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()


class Ledger(Observer):
    """What each round of the one experiment has come to."""

    def __init__(self, timings: Timings, shards: int) -> None:
        self.done = 0
        self.ended = False
        self.failure = ""
        self._timings = timings
        self._shards = shards
        self._attempts: dict[AttemptId, _Attempt] = {}
        self._rounds: defaultdict[int, _Round] = defaultdict(_Round)
        self._savers: dict[str, tuple[AttemptId, float]] = {}
        self._now = 0.0

    def acting(self, step: Observation) -> None:
        """Enter an event and what was decided."""
        event = step.event
        self._now = step.core.state.now_seconds
        if isinstance(event, on.UpdatePublished):
            self._rounds[event.attempt.round].updates += 1
            self._end(event.attempt)
        elif isinstance(event, on.HandedOver):
            self._rounds[event.attempt.round].moves += 1
            self._end(event.attempt)
        for fact in step.facts:
            self._enter(fact)
        for command in step.commands:
            self._follow(command)

    def rounds(self) -> tuple[RoundOutcome, ...]:
        """Return what the rounds came to; attempts under way count until now."""
        busy: defaultdict[int, float] = defaultdict(float)
        for attempt, entry in self._attempts.items():
            busy[attempt.round] += (entry.ended_at or self._now) - entry.begun_at
        return tuple(
            RoundOutcome(
                seconds=found.seconds,
                lost=len(found.dropped) / self._shards,
                busy_seconds=busy[number],
                useful_seconds=found.useful,
                moves=found.moves,
                updates=found.updates,
                snapshots=found.snapshots,
                dropped=found.dropped,
                sizes=found.sizes,
            )
            for number, found in sorted(self._rounds.items())
        )

    def _enter(self, fact: facts.Fact) -> None:
        match fact:
            case facts.Assigned():
                name = fact.snapshot.file.name if fact.snapshot is not None else None
                self._attempts[fact.attempt] = _Attempt(self._now, name)
            case facts.Saved():
                self._save(fact)
            case facts.Accepted():
                self._accept(fact.attempt)
            case facts.GivenUp():
                self._end(fact.attempt)
            case facts.Dropped():
                self._rounds[fact.round].dropped = fact.shards
            case facts.Resized():
                self._rounds[fact.round].sizes = fact.samples
            case facts.Concluded():
                self.ended = True
                self.failure = fact.reason if fact.ending is not ExperimentState.FINISHED else ""
            case _:
                pass

    def _follow(self, command: do.Command) -> None:
        match command:
            case do.Cancel():
                self._end(command.attempt)
            case do.Aggregate():
                self._rounds[command.round].seconds = command.train_seconds
                self.done = command.round + 1
            case _:
                pass

    def _end(self, attempt: AttemptId) -> None:
        entry = self._attempts.get(attempt)
        if entry is not None and entry.ended_at is None:
            entry.ended_at = self._now

    def _save(self, fact: facts.Saved) -> None:
        self._rounds[fact.attempt.round].snapshots += 1
        self._savers[fact.snapshot.file.name] = fact.attempt, self._now
        entry = self._attempts[fact.attempt]
        entry.saved_at = [*(entry.saved_at or []), self._now]

    def _accept(self, attempt: AttemptId) -> None:
        """Count what has led to an update: its own attempt, and what it went on from."""
        until, found = self._now, self._attempts.get(attempt)
        while found is not None:
            saving = sum(at <= until for at in found.saved_at or []) * self._timings.saving_seconds
            resuming = self._timings.resuming_seconds if found.snapshot is not None else 0.0
            self._rounds[attempt.round].useful += until - found.begun_at - saving - resuming
            former = self._savers.get(found.snapshot or "")
            if former is None:
                return
            attempt, until = former
            found = self._attempts[attempt]
