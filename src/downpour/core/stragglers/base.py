"""A policy's input (`RoundView`) and its output (`Action`); values only.

A policy may

- assign a pending shard to an idle worker, all of it or its first steps, or a running one to a
  second worker (the first update counts),
- withdraw an attempt from its worker,
- hand an attempt over: its worker publishes its state at its next step, and another worker goes on
  from there,
- close the round without the shards that are missing,
- cut the round into shards of other sizes before it begins,
- request another worker.

The scheduler asks again about every shard that a policy leaves pending.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from downpour.base.values import Forecast

Option = bool | int | float | str | list[int] | list[float] | list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingTask:
    """A shard that no worker is training.

    `failed_on` names the workers on which it failed. Those of `lost_on` failed once, because they
    were lost. `meant_for` is the worker that is to go on with it, where it was handed over. `saved`
    is the share of it that a snapshot holds, in 0..1.
    """

    shard: int
    samples: int
    failed_on: tuple[str, ...] = ()
    lost_on: frozenset[str] = frozenset()
    meant_for: str | None = None
    saved: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningTask:
    """One worker's attempt at a shard; a shard with copies appears once for each of them.

    `done` is the share of the whole shard, in 0..1, that was trained by the worker's last report,
    `reported_seconds` ago. An attempt that goes on from a snapshot began at the share `began_at`.
    `elapsed_seconds` run from the assignment, or from when the worker's process had imported and
    loaded what it needs once in an experiment. `remaining` is the forecast of the seconds from the
    last report to the update. `attempt` numbers the attempts at the shard, from 0. `still_seconds`
    is how long ago its last known step was. `meant_for` is set while the shard is being handed
    over, which was asked for `leaving_seconds` ago. A worker that `is_starting` still imports, or
    makes the network, and takes no longer for that than it may: how fast it will be is unknown.
    """

    shard: int
    samples: int
    worker: str
    elapsed_seconds: float
    began_at: float = 0.0
    done: float = 0.0
    reported_seconds: float = 0.0
    remaining: Forecast | None = None
    saved: float = 0.0
    copies: int = 1
    attempt: int = 0
    still_seconds: float = 0.0
    meant_for: str | None = None
    leaving_seconds: float = 0.0
    is_starting: bool = False

    @property
    def rate(self) -> float:
        """Shares of the shard a second, on average since it was assigned; 0 before any report."""
        measured = self.elapsed_seconds - self.reported_seconds
        return (self.done - self.began_at) / measured if measured > 0 else 0.0


# Enough for the policies that look at the last rounds (`blacklist`: 5), and bounded, because an
# experiment may have thousands.
ROUNDS_REMEMBERED = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHistory:
    """A worker's pace over the round's median pace, one number for each earlier round, latest last.

    A pace is seconds a sample, from assignment to report.
    """

    slowness: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How fast a worker was over its last few reports, and how steadily.

    `share` is the part of a shard that it was measured over. `variance` is that of the seconds for
    a whole shard over their square, estimated from the differences between the times of reports;
    None after only one such time. So over `share` the relative standard error is sqrt(variance /
    share). `age_seconds` is how long ago it was measured, in an earlier attempt; 0 where it is that
    of the running one. `step_seconds` is how long one step takes; 0 if unknown. With `at_most`, the
    worker made no step in `step_seconds`, so it is no faster than this.
    """

    samples_per_second: float
    share: float
    variance: float | None = None
    age_seconds: float = 0.0
    step_seconds: float = 0.0
    at_most: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundView:
    """A round at one moment; valid during the call only, because it shares the scheduler's state.

    `pending` is in shard order, and only as long as it takes to find every idle worker a shard that
    did not fail on it. `idle` begins with the worker that has waited longest. `workers` are all
    present workers, busy ones included, but not stuck or unfit ones, because a policy must not wait
    for these. `standbys` is how many of them to keep free, at least, for shards that fall behind.

    A policy that does not watch sees none of the following. `running` and `published` are this
    round's attempts and updates; of an update, its samples and the seconds from assignment to
    report, without its worker's start-up. `paces` forecasts a worker's seconds a sample if it began
    a shard now. `speeds` are samples a second over the last few heartbeats, of workers that have
    trained in this round. `history` is about earlier rounds. `overhead_seconds` is an attempt's
    time besides training (loading, publishing, messages), measured in the previous round; 0 if
    unknown. `elapsed_seconds` run from the round's first assignment. `requested` is how many
    requested workers have not joined yet. An option that `options` leaves out has the policy's
    default.

    `barred` are the workers that lack a shard's labels, for each shard with its own needs.
    """

    round: int
    at_seconds: float
    pending: tuple[PendingTask, ...]
    idle: Collection[str]
    workers: Collection[str]
    shards: int = 0
    begun: bool = True
    running: tuple[RunningTask, ...] = ()
    published: tuple[tuple[int, float], ...] = ()
    paces: Mapping[str, Forecast] = field(default_factory=dict)
    history: Mapping[str, WorkerHistory] = field(default_factory=dict)
    standbys: int = 0
    speeds: Mapping[str, Speed] = field(default_factory=dict)
    overhead_seconds: float = 0.0
    elapsed_seconds: float = 0.0
    requested: int = 0
    options: Mapping[str, Option] = field(default_factory=dict)
    barred: Mapping[int, frozenset[str]] = field(default_factory=dict)

    def may_train(self, worker: str, shard: int) -> bool:
        """Say whether a worker has what a shard needs."""
        return worker not in self.barred.get(shard, ())

    def first_fit(self, shard: int, workers: Iterable[str]) -> str | None:
        """Return the first of some workers that has what a shard needs."""
        return next((name for name in workers if self.may_train(name, shard)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Assign a shard to an idle worker, alone or beside other workers.

    `share` is how much of the task's steps is to be trained, above 0 and at most 1. The first
    assignment decides it for the whole task, so that all attempts at it have the same bytes.
    """

    shard: int
    worker: str
    reason: str
    share: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawal:
    """Take a shard from a worker; the attempt does not count as a failure."""

    shard: int
    worker: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Handoff:
    """Have `worker` publish its state of a shard and stop, so that `meant_for` goes on from there.

    Two of these, each meant for the other's worker, are an exchange.
    """

    shard: int
    worker: str
    meant_for: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """End the round with the updates that there are; at least one is.

    The scheduler tells workers that still train to stop. With `leave_running` they finish, and
    their updates are discarded, as those of backup workers are.
    """

    reason: str
    leave_running: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """Cut the round into shards of these sizes, in samples, before any of it is assigned."""

    samples: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRequest:
    """Ask the launcher for one more worker."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Leave a late shard where it is, and say why; the scheduler tells users once a round."""

    shard: int
    worker: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """How much sooner a round ends with a worker: a `share` of its time without it.

    Below zero, the worker costs time. One that `stands_by` begins no shard; the share is then what
    it would be if it did.
    """

    share: float
    stands_by: bool


Action = Assignment | Withdrawal | Handoff | Close | Resize | WorkerRequest | Waiting
Decide = Callable[[RoundView], Sequence[Action]]
Contributing = Callable[[RoundView, Sequence[int], Collection[str]], Mapping[str, Saving]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A straggler policy: its pure function, and what the scheduler and users must know of it.

    `decide` assigns at most one shard to an idle worker, and only shards that it may train. If all
    workers are idle and one of them may train a pending shard, the policy must assign one.
    Otherwise no event would follow, and the round would stand still. A policy that `watches` is
    also asked while all workers are busy; with many running tasks, that happens only now and then.
    Meanwhile `between`, if there is one, assigns shards to idle workers. Of running tasks it sees
    only the ones in a hand-over. A policy that `preserves_bytes` yields the model of `wait`,
    because every shard counts once. One that `cuts_rounds` returns `Resize`, one that `shortens`
    assigns shares of tasks. One that `hands_over` needs attempts to go on from snapshots.
    `standing_by` says of idle workers, in a line each, why they get none of the shards that wait.
    `contributions` says of some workers by how much they shorten a round of shards of these sizes.
    `options` are its parameters with their defaults, `largest` values that some may not exceed.
    """

    decide: Decide
    watches: bool = False
    between: Decide | None = None
    preserves_bytes: bool = True
    cuts_rounds: bool = False
    shortens: bool = False
    hands_over: bool = False
    standing_by: Callable[[RoundView], Mapping[str, str]] | None = None
    contributions: Contributing | None = None
    options: Mapping[str, Option] = field(default_factory=dict)
    largest: Mapping[str, int] = field(default_factory=dict)
