"""A ledger of the workers' time in a simulated run, and references to measure policies against.

The ledger observes and never interferes. A worker's time is useful if its training counted, even if
another worker finished the shard. All other time is extra: copies, restarted shards, dropped
shards, and the time that moves take.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from statistics import median

from downpour.base.states import ExperimentState
from downpour.base.values import AttemptId
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour_lab.policylab.conditions import Conditions, Curve
from downpour_lab.simulated.environment import Observation, Observer, Timings


@dataclass(slots=True, kw_only=True)
class RoundOutcome:
    """A round's outcome: its seconds, and the share of samples that were `lost`.

    `busy_seconds` is the time of all workers on the round's attempts, `useful_seconds` the part
    that counted. `moves` is how often workers handed a shard over, `updates` and `snapshots` how
    many they published. `dropped` names shards. If the policy resized shards, `sizes` has all of
    them. If some shards did not train all of their steps, `shares` says how much each shard
    trained.
    """

    seconds: float = 0.0
    lost: float = 0.0
    busy_seconds: float = 0.0
    useful_seconds: float = 0.0
    moves: int = 0
    updates: int = 0
    snapshots: int = 0
    dropped: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    shares: tuple[float, ...] = ()


@dataclass(slots=True)
class _Attempt:
    """The times of an attempt: its end, the snapshots it published, and the one it began from."""

    begun_at: float
    snapshot: str | None
    ended_at: float | None = None
    saved_at: list[float] = field(default_factory=list)


class Ledger(Observer):
    """Keeps the outcome of each round of the run's only experiment."""

    def __init__(self, timings: Timings, shards: int) -> None:
        self.done = 0
        self.ended = False
        self.failure = ""
        self._timings = timings
        self._shards = shards
        self._attempts: dict[AttemptId, _Attempt] = {}
        self._rounds: defaultdict[int, RoundOutcome] = defaultdict(RoundOutcome)
        self._shares: defaultdict[int, dict[int, float]] = defaultdict(dict)
        self._savers: dict[str, tuple[AttemptId, float]] = {}
        self._now = 0.0

    def acting(self, step: Observation) -> None:
        """Enter an event, its facts and its commands."""
        event = step.event
        self._now = step.core.state.now_seconds
        if isinstance(event, on.UpdatePublished):
            self._rounds[event.attempt.round].updates += 1
            self._end(event.attempt)
        elif isinstance(event, on.HandedOver):
            self._rounds[event.attempt.round].moves += 1
            self._end(event.attempt)
        for fact in step.output.facts:
            self._enter(fact)
        for command in step.output.commands:
            match command:
                case out.Cancel():
                    self._end(command.attempt)
                case out.Aggregate():
                    self._rounds[command.round].seconds = command.train_seconds
                    self.done = command.round + 1

    def rounds(self) -> tuple[RoundOutcome, ...]:
        """Return the outcomes of the rounds; running attempts count until now."""
        busy: defaultdict[int, float] = defaultdict(float)
        for attempt, times in self._attempts.items():
            busy[attempt.round] += (times.ended_at or self._now) - times.begun_at
        for number, entry in self._rounds.items():
            kept, dropped = self._shares[number], entry.dropped
            shares = tuple(0.0 if n in dropped else kept.get(n, 1.0) for n in range(self._shards))
            entry.busy_seconds = busy[number]
            entry.lost = 1 - sum(shares) / self._shards
            entry.shares = shares if kept else ()
        return tuple(entry for _, entry in sorted(self._rounds.items()))

    def _enter(self, fact: out.Fact) -> None:
        match fact:
            case out.Assigned():
                name = fact.snapshot.file.name if fact.snapshot is not None else None
                self._attempts[fact.attempt] = _Attempt(self._now, name)
                if fact.share < 1:
                    self._shares[fact.attempt.round][fact.attempt.shard] = fact.share
            case out.Saved():
                self._rounds[fact.attempt.round].snapshots += 1
                self._savers[fact.snapshot.file.name] = fact.attempt, self._now
                self._attempts[fact.attempt].saved_at.append(self._now)
            case out.Accepted():
                self._accept(fact.attempt)
            case out.GivenUp():
                self._end(fact.attempt)
            case out.Dropped():
                self._rounds[fact.round].dropped = fact.shards
            case out.Resized():
                self._rounds[fact.round].sizes = fact.samples
            case out.Concluded():
                self.ended = True
                self.failure = fact.reason if fact.ending is not ExperimentState.FINISHED else ""

    def _end(self, attempt: AttemptId) -> None:
        entry = self._attempts.get(attempt)
        if entry is not None and entry.ended_at is None:
            entry.ended_at = self._now

    def _accept(self, attempt: AttemptId) -> None:
        """Count the time that led to an update: of its attempt, and of the attempts before it."""
        until, entry = self._now, self._attempts.get(attempt)
        while entry is not None:
            saving = sum(at <= until for at in entry.saved_at) * self._timings.saving_seconds
            resuming = self._timings.resuming_seconds if entry.snapshot is not None else 0.0
            self._rounds[attempt.round].useful_seconds += until - entry.begun_at - saving - resuming
            former = self._savers.get(entry.snapshot or "")
            if former is None:
                return
            # Steps that an earlier attempt made after its snapshot are lost, so it counts until
            # then.
            attempt, until = former
            entry = self._attempts[attempt]


STRAGGLER = 1.5
"""A straggler takes longer than this many times the round's median."""

# Each halving halves the error: after 50, it is below the rounding of the result.
_HALVINGS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """One round's seconds, without a policy and for each oracle.

    `wait` is the time of its slowest task, `ideal` of its median task, and `kind_ideal` of its
    slowest task that is no straggler.

    The oracles know every host's curve beforehand. One gives each shard to one host for good. One
    may also give second shards to hosts that have finished. One divides the work as finely as it
    likes, which training in steps cannot.
    """

    wait: float
    ideal: float
    kind_ideal: float
    best_hosts: float
    whole_shards: float
    divided: float


def reference(conditions: Conditions, number: int, standbys: int) -> Reference:
    """Compute the reference seconds of a round."""
    hosts = conditions.hosts
    curves = [conditions.curve(number, host) for host in range(hosts + standbys)]
    alone = [curve.when(1.0) for curve in curves]
    usual = median(alone[:hosts])
    longest = max(alone)
    in_turn = (
        curve.when(float(shards))
        for curve in curves
        for shards in range(1, hosts + 1)
        if curve.when(float(shards)) <= longest
    )
    return Reference(
        wait=max(alone[:hosts]),
        ideal=usual,
        kind_ideal=max(seconds for seconds in alone[:hosts] if seconds <= STRAGGLER * usual),
        best_hosts=nsmallest(hosts, alone)[-1],
        whole_shards=nsmallest(hosts, in_turn)[-1],
        divided=_divided(curves, hosts, longest),
    )


def _divided(curves: Sequence[Curve], shards: int, longest: float) -> float:
    low, high = 0.0, longest
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        enough = sum(curve.done(middle) for curve in curves) >= shards
        low, high = (low, middle) if enough else (middle, high)
    return high


TOLERATED = 1
COPIES = 2
LEFT_OUT = 2


def gradient_coding(conditions: Conditions, number: int) -> RoundOutcome:
    """Return the outcome of a round with two shards per worker, in which one may be missing.

    A code lets a round end when enough workers have answered, no matter which ones, because each
    worker does the work of several shards. Codes need sums of gradients, which local training over
    a whole shard doesn't produce. So we use codes only in comparisons.

    This is fractional repetition (Tandon et al. 2017): any `s` workers may be missing, and the sum
    is still exact, at s + 1 times the work.
    """
    return _coded(conditions, number, load=TOLERATED + 1, missing=TOLERATED, lost=0.0)


def stochastic_gradient_coding(conditions: Conditions, number: int) -> RoundOutcome:
    """Return the outcome of a round with two workers per sample, which leaves out two workers.

    A sample is lost if the round leaves out both of its workers.

    Each sample is on two workers drawn at random (Bitar, Wootters, El Rouayheb).
    """
    hosts = conditions.hosts
    lost = LEFT_OUT * (LEFT_OUT - 1) / (hosts * (hosts - 1))
    return _coded(conditions, number, load=COPIES, missing=LEFT_OUT, lost=lost)


CODES: dict[str, Callable[[Conditions, int], RoundOutcome]] = {
    "gradient-coding": gradient_coding,
    "stochastic-coding": stochastic_gradient_coding,
}


def _coded(
    conditions: Conditions, number: int, *, load: int, missing: int, lost: float
) -> RoundOutcome:
    curves = [conditions.curve(number, host) for host in range(conditions.hosts)]
    ends = sorted(curve.when(float(load)) for curve in curves)
    seconds = ends[len(ends) - 1 - missing]
    return RoundOutcome(
        seconds=seconds,
        lost=lost,
        busy_seconds=sum(min(end, seconds) for end in ends),
        useful_seconds=sum(curve.when(1.0) for curve in curves),
        updates=conditions.hosts - missing,
    )
