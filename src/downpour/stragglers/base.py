"""What a policy sees and what it may ask for; values only.

A shard is trained by whoever was given it. A policy may give a pending shard to somebody, give a
running one to somebody else as well (the first update counts), take an attempt back, have it handed
over (its worker publishes its state at its next step, and the one it is meant for goes on from
there), close the round without the shards that are missing, cut the round into shards of other
sizes before it begins, or ask for another worker. What it leaves undone it is asked about again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from downpour.values import Forecast

Option = bool | int | float | str | list[int] | list[float] | list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingTask:
    """A shard that nobody is training.

    `failed_on` names the workers that tried in vain; `meant_for` who is to go on with it, where it
    was handed over; `saved` is the share of it that a snapshot holds, in 0..1.
    """

    shard: int
    samples: int
    failed_on: tuple[str, ...] = ()
    meant_for: str | None = None
    saved: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningTask:
    """A shard as one worker is training it; one with copies is seen once for each.

    `done` is the share that was trained by its last report (a share in 0..1 of the whole shard,
    also where it went on from a snapshot, which held `began_at`), `reported_seconds` how long
    ago that was. `elapsed_seconds` run from its assignment. `remaining` are the seconds until
    its update, as forecast from the last report on. `attempt` numbers the tries at the shard,
    from 0. `still_seconds` is how long ago its last known step was. `meant_for` is set while it
    is being handed over, for `leaving_seconds` now.
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

    @property
    def rate(self) -> float:
        """Shares of the shard a second, on average since it was assigned; 0 before any report."""
        measured = self.elapsed_seconds - self.reported_seconds
        return (self.done - self.began_at) / measured if measured > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHistory:
    """How a worker did in rounds that are over: its pace over the round's median pace, latest last.

    A pace is seconds a sample, from assignment to report.
    """

    slowness: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundView:
    """A round at one moment; to be read during the call, not to be kept.

    `pending` is in shard order, and no longer than it takes to find every idle worker a shard that
    did not fail on it. `idle` begins with whoever has waited longest. `workers` are all who are
    here, the busy ones too. `running` and `published` (samples and seconds from assignment to
    report, a pair for each shard that has its update) are there only for a policy that watches.
    `paces` forecasts the seconds a sample of whoever would begin a shard now. `standbys` is how
    many workers are to be kept free at least, for those that fall behind. `speeds` are samples a
    second, as measured over the last few heartbeats of whoever trained in this round; empty where
    they are not measured. `overhead_seconds` is what an attempt takes beside training (loading,
    publishing, messages), as measured in the round before; 0 where that is unknown.
    `elapsed_seconds` run from the round's beginning, `requested` is how many workers were asked for
    that have not come yet. What `options` leaves out has the policy's default.
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
    speeds: Mapping[str, float] = field(default_factory=dict)
    overhead_seconds: float = 0.0
    elapsed_seconds: float = 0.0
    requested: int = 0
    options: Mapping[str, Option] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Let this worker, which is idle, train this shard, alone or beside others."""

    shard: int
    worker: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawal:
    """Let this worker stop what it does for this shard; that is not its failure."""

    shard: int
    worker: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """Let `worker` publish its state of this shard and stop; it is `meant_for` go on from there.

    Two of these, each meant for the other's worker, are an exchange.
    """

    shard: int
    worker: str
    meant_for: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """Let the round be over with the updates that there are; at least one is.

    Whoever still trains is told to stop, unless it is to be left to finish for nothing, as backup
    workers are (`leave_running`).
    """

    reason: str
    leave_running: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """Cut the round into shards of these sizes, before anything of it was assigned."""

    samples: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Ask whoever starts workers for one more."""

    reason: str


Action = Assignment | Withdrawal | HandOver | Close | Resize | Request
Decide = Callable[[RoundView], list[Action]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Decides what to do in a round; pure.

    `decide` gives an idle worker at most one shard, and must not leave everything undone while all
    workers are idle: then nothing would ever happen. `watches` says that it wants to be asked while
    everybody is busy, too. `preserves_bytes` says that the model comes out the same as under
    `wait`, because every shard counts once, whoever trains it. `cuts_rounds` says that it asks for
    shards of other sizes. `hands_over` says that it rests on going on from where others stopped.
    `options` are its parameters, with their defaults.
    """

    decide: Decide
    watches: bool = False
    preserves_bytes: bool = True
    cuts_rounds: bool = False
    hands_over: bool = False
    options: Mapping[str, Option] = field(default_factory=dict)
    summary: str = ""
