"""The interface of a policy: what it sees, and what it may do.

If a policy leaves a shard pending, the scheduler asks about it again.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from downpour.base.errors import SpecError
from downpour.base.names import AUTO
from downpour.base.values import Forecast
from downpour.core import families
from downpour.core.spec import Spec
from downpour.core.spec_fields import Option


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingTask:
    """A shard that no worker is training.

    `failed_on` names the workers on which it failed. `lost_on` names the workers that were lost and
    may try again: they failed only once, or the lost attempt had published a snapshot. `meant_for`
    is the worker that continues a shard after a hand-over. A snapshot holds the share `saved` of
    the shard, in 0..1. `home` is the worker whose update of the shard counted last, so it may still
    hold the shard's examples and states; None once the shard was assigned in this round.
    """

    shard: int
    samples: int
    failed_on: tuple[str, ...] = ()
    # Replay knows no workers, and so not which of them were lost.
    lost_on: frozenset[str] = field(default=frozenset(), compare=False)
    meant_for: str | None = None
    saved: float = 0.0
    home: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningTask:
    """One worker's attempt at a shard; a shard with copies appears once for each of them.

    The worker sent its last report `reported_seconds` ago, and had then trained the share `done` of
    the whole shard, in 0..1. An attempt that continues from a snapshot began at the share
    `began_at`. `elapsed_seconds` counts from the assignment, without the time in which the worker's
    process started up: it imports and loads some things once per experiment. `remaining` is the
    forecast of the seconds from the last step to the update. `attempt` numbers the attempts at
    the shard, from 0. The last known step was `still_seconds` ago. `meant_for` is set during a
    hand-over, which the manager requested `leaving_seconds` ago. A worker that `is_starting` still
    imports code or builds the network, and is within its time limit. Its speed is still unknown.
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
        """Shares of the shard per second, averaged since its assignment; 0 before any report."""
        measured = self.elapsed_seconds - self.reported_seconds
        return (self.done - self.began_at) / measured if measured > 0 else 0.0


# Enough for the policies that look at the last rounds (`blacklist`: 5). We set a limit because an
# experiment may have thousands of rounds.
ROUNDS_REMEMBERED = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHistory:
    """A worker's pace over the round's median pace, one number for each earlier round, latest last.

    A pace is in seconds per sample, from assignment to report.
    """

    slowness: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How fast a worker was over its last few reports, and how steadily.

    The measurement covers the part `share` of a shard. `variance` is the variance of the seconds
    for a whole shard, divided by their square. We estimate it from the intervals between reports;
    it is None if there is only one interval. Over `share`, the relative standard error is then
    sqrt(variance / share). A speed from an earlier attempt was measured `age_seconds` ago; the age
    is 0 for the running attempt. `step_seconds` is the time of one step; 0 if unknown. With
    `at_most`, the worker made no step in `step_seconds`, so it is no faster than this.
    """

    samples_per_second: float
    share: float
    variance: float | None = None
    age_seconds: float = 0.0
    step_seconds: float = 0.0
    at_most: bool = False


class UpdateTimes:
    """The times of a round's updates, in rising order.

    A shard's `seconds` are those from assignment to report, without its worker's start-up. `paces`
    are the seconds per sample of shards that have any.
    """

    def __init__(self, updates: Iterable[tuple[int, float]] = ()) -> None:
        self.seconds: list[float] = []
        self.paces: list[float] = []
        for samples, seconds in updates:
            self.add(samples, seconds)

    def __len__(self) -> int:
        """Return how many updates there are."""
        return len(self.seconds)

    def add(self, samples: int, seconds: float) -> None:
        """Count an update."""
        insort(self.seconds, seconds)
        if samples > 0:
            insort(self.paces, seconds / samples)

    def remove(self, samples: int, seconds: float) -> None:
        """Count an update no longer."""
        del self.seconds[bisect_left(self.seconds, seconds)]
        if samples > 0:
            del self.paces[bisect_left(self.paces, seconds / samples)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundView:
    """A round at one moment; valid during the call only, because it shares the scheduler's state.

    `pending` is in shard order. It holds only enough shards to find every idle worker one that did
    not fail on it, and the first shard that it trained last. `idle` begins with the worker that
    has waited longest; if there are more workers than shards, the homes of shards come first.
    `workers` are all present workers, including busy ones. It leaves out stuck and unfit workers
    because a policy must not wait for them. A policy keeps at least `standbys` workers free for
    shards that fall behind.

    A policy that does not watch sees none of the following. `running` are this round's attempts;
    none of them is being handed over unless `moving`. `published` has the times of its updates:
    `seconds` from assignment to report, and `paces` by sample, in rising order. `paces` forecasts
    the seconds per sample of a worker that would begin a shard now. `speeds` are samples per second
    over the last few heartbeats, for workers that have trained in this round. `history` covers
    earlier rounds. `overhead_seconds` is the time that an attempt spent besides training (loading,
    publishing, messages) in the previous round; 0 if unknown. `elapsed_seconds` counts from the
    round's first assignment. `requested` is the number of requested workers that have not joined
    yet. `options` has the policy's options: those of the spec, or else their defaults.

    For each shard with its own needs, `barred` holds the workers that lack its labels.
    """

    round: int
    at_seconds: float
    pending: tuple[PendingTask, ...]
    idle: Collection[str]
    workers: Collection[str]
    shards: int = 0
    begun: bool = True
    running: Sequence[RunningTask] = ()
    moving: bool = True
    published: UpdateTimes = field(default_factory=UpdateTimes)
    paces: Mapping[str, Forecast] = field(default_factory=dict)
    history: Mapping[str, WorkerHistory] = field(default_factory=dict)
    standbys: int = 0
    speeds: Mapping[str, Speed] = field(default_factory=dict)
    overhead_seconds: float = 0.0
    elapsed_seconds: float = 0.0
    requested: int = 0
    options: Mapping[str, Option] = field(default_factory=dict)
    barred: Mapping[int, frozenset[str]] = field(default_factory=dict)

    def number(self, option: str) -> float:
        """Return an option of a policy; `check_policy` ensures that it is a number."""
        return float(cast("float", self.options[option]))

    def may_train(self, worker: str, shard: int) -> bool:
        """Say whether a worker has what a shard needs."""
        return worker not in self.barred.get(shard, ())

    def first_fit(self, shard: int, workers: Iterable[str]) -> str | None:
        """Return the first of some workers that has what a shard needs."""
        return next((name for name in workers if self.may_train(name, shard)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Assign a shard to an idle worker, alone or beside other workers.

    The worker trains the share `share` of the task's steps, above 0 and at most 1. The first
    assignment decides the share for the whole task, so that all its attempts have the same bytes.
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
    """Ask `worker` to publish its state of a shard and stop, so that `meant_for` can continue.

    Two hand-overs form an exchange if each is meant for the other's worker.
    """

    shard: int
    worker: str
    meant_for: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """End the round with the updates so far; there must be at least one.

    The scheduler tells workers that still train to stop. With `leave_running` they finish, and the
    manager discards their updates, as the policy `backup` wants.
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
    """Leave a late shard where it is, and say why; the scheduler tells users once per round."""

    shard: int
    worker: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """How much sooner a round ends with a worker, as a `share` of the round's time without it.

    If the share is below zero, the worker costs time. A worker that `stands_by` begins no shard;
    its share says what would happen if it did.
    """

    share: float
    stands_by: bool


Action = Assignment | Withdrawal | Handoff | Close | Resize | WorkerRequest | Waiting
Decide = Callable[[RoundView], Sequence[Action]]
Contributing = Callable[[RoundView, Sequence[int], Collection[str]], Mapping[str, Saving]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A straggler policy: its pure function, and what the scheduler and users must know about it.

    `decide` assigns at most one shard to an idle worker, and only shards that the worker may train.
    If all workers are idle and one of them may train a pending shard, the policy must assign one.
    Otherwise no event would follow, and the round would never end. The scheduler also asks a policy
    that `watches` while all workers are busy. With many running tasks, it asks only now and then.
    Meanwhile `between`, if there is one, assigns shards to idle workers. It sees only those running
    tasks that are being handed over. A policy that `preserves_bytes` yields the same model as
    `wait`, because every shard counts once. A policy that `cuts_rounds` returns `Resize`, and one
    that `shortens` assigns shares of tasks. A policy that `hands_over` needs attempts that can
    continue from snapshots. `standing_by` explains, in a line for each idle worker, why it gets
    none of the waiting shards. `contributions` says how much some workers shorten a round whose
    shards have the given sizes. `options` are the policy's parameters with their defaults, and
    `largest` limits some of them.
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


POLICIES: Mapping[str, Policy] = families.POLICIES


def check_policy(spec: Spec, policy: Policy, workers: int) -> None:
    """Refuse options, standbys, splits and optimizer states that a policy cannot work with."""
    if not isinstance(policy, Policy):  # a package may register anything
        raise SpecError("policy", spec.policy, f"must be a Policy, but its package has {policy!r}")
    for name, value in spec.policy_options.items():
        _check_option(spec.policy, policy, name, value)
    # At least one worker must be free to train.
    if spec.standbys >= workers:
        accepted = f"must be less than the number of workers, {workers}"
        raise SpecError("standbys", spec.standbys, accepted)
    if spec.standbys and not policy.watches:
        accepted = (
            f"must be 0, because policy '{spec.policy}' never uses standbys; or use another policy"
        )
        raise SpecError("standbys", spec.standbys, accepted)
    if policy.cuts_rounds:
        _check_recut(spec)


def _check_recut(spec: Spec) -> None:
    """Refuse shards that differ in more than their examples, which a recut would mix."""
    recuts = f"policy '{spec.policy}' recuts the shards"
    # In other splits, a shard stands for a class or a mixture of classes. A recut would lose that.
    if spec.split not in {"random", "equal"}:
        raise SpecError("split", spec.split, f"must be random or equal, because {recuts}")
    if spec.optimizer_state == "keep":
        accepted = f"must be reset, because {recuts} and states belong to a shard"
        raise SpecError("optimizer_state", spec.optimizer_state, accepted)
    if spec.hands_on:
        accepted = f"keeps a residual per shard, but {recuts}"
        raise SpecError("compression", spec.compression, accepted)
    if spec.shard_needs:
        accepted = f"must be empty, because {recuts} and their data change"
        raise SpecError("shard_needs", spec.shard_needs, accepted)
    # The parts of a shard would not form one epoch if the policy recut it between them.
    if spec.meet not in {1, AUTO}:
        raise SpecError("meet", spec.meet, f"must be 1, because {recuts} once per epoch")


def _check_option(named: str, policy: Policy, name: str, value: object) -> None:
    field = f"policy_options.{name}"
    if name not in policy.options:
        options = ", ".join(policy.options) or "none"
        raise SpecError(field, value, f"policy '{named}' has no such option; it has: {options}")
    usual = policy.options[name]
    # A whole number may replace a fraction. True may replace neither, although bool is an int.
    numbers = isinstance(usual, int | float) and isinstance(value, int | float)
    alike = isinstance(value, bool) == isinstance(usual, bool)
    if not alike or not (numbers or isinstance(value, type(usual))):
        raise SpecError(field, value, f"must have the type of its default, {usual!r}")
    if isinstance(usual, int) and value % 1:  # type: ignore[operator]
        raise SpecError(field, value, "must be a whole number")
    if numbers and not isinstance(value, bool) and value < 0:  # type: ignore[operator]
        raise SpecError(field, value, "must not be negative")
    if numbers and name in policy.largest and value > policy.largest[name]:  # type: ignore[operator]
        raise SpecError(field, value, f"must be at most {policy.largest[name]}")
