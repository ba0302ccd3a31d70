"""A round: the tasks of its shards, which of them are pending or held back, and published updates.

It keeps the state of a round and moves its tasks by their table. It decides nothing: `updates`
decides whether a failure ends the experiment, and `dispatch` which worker trains what.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable, KeysView, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from operator import neg
from types import MappingProxyType
from typing import NamedTuple

from downpour.base.states import TASK, Failure, Lifecycle, TaskState
from downpour.base.values import AttemptId, PublishedFile, Snapshot, Update
from downpour.core.scheduler.outputs import Accepted, Withheld
from downpour.core.stragglers.base import PendingTask, UpdateTimes


class TaskKey(NamedTuple):
    """Names a task of an experiment."""

    round: int
    shard: int


class Unaudited(NamedTuple):
    """The first of a worker's tasks since its last good audit, and their number.

    None of them is part of the model `before`, which is the version of that number.
    """

    first: TaskKey
    tasks: int
    before: PublishedFile
    version: int

    def extended(self) -> Unaudited:
        """Return them with one more task."""
        return self._replace(tasks=self.tasks + 1)


class ShardTask:
    """The training of one shard in one round.

    `held_by` maps the workers that train the task to their attempts. `worker` and `attempt` belong
    to its update. `offer` is the task as a policy sees it while it is pending. Updates of attempts
    numbered below `first_to_count` no longer count. The next attempt continues from `snapshot`,
    which holds the share `offer.saved` of the work. The attempts numbered in `furthered` published
    one, so their failures do not count, and `excused` is how many of these failed. `assigned_to`
    lists the workers of all attempts, and `began_at` the shares from which the attempts continued.
    `leaving` lists the holders that we asked to hand over the task: it maps each to the worker that
    will continue, and to the time of the request. If we audit the task, its updates are `withheld`
    until two workers agree (`audits.py`), which has then `confirmed` its update. All attempts train
    from the model `base`, which is version `base_version`, and do the same `share` of the steps. So
    their updates have the same bytes, even if the model has moved on. `samples` counts the samples
    of the shard; attempts train as many of these as `offer` says.
    """

    def __init__(
        self, round_number: int, shard: int, samples: int, home: str | None = None
    ) -> None:
        self.shard = shard
        self.samples = samples
        self.share = 1.0
        self.life = Lifecycle(f"task round {round_number} shard {shard}", TASK, TaskState.PENDING)
        self.offer = PendingTask(shard=shard, samples=samples, home=home)
        self.assigned_at_seconds: list[float] = []
        self.assigned_to: list[str] = []
        self.failed: list[Failure] = []
        self.furthered: set[int] = set()
        self.excused = 0
        self.first_to_count = 0
        self.held_by: dict[str, AttemptId] = {}
        self.snapshot: Snapshot | None = None
        self.began_at: list[float] = []
        self.leaving: dict[str, tuple[str, float]] = {}
        self.base: PublishedFile | None = None
        self.base_version = 0
        self.completion_seconds = 0.0
        self.startup_seconds = 0.0
        self.worker: str | None = None
        self.attempt: AttemptId | None = None
        self.update: Update | None = None
        self.withheld: list[Withheld] = []
        self.confirmed = False

    @property
    def failures(self) -> int:
        """How often it failed without progress; more than the spec's retries end the experiment."""
        return len(self.failed) - self.excused

    @property
    def attempts(self) -> int:
        """How often we assigned it; the next attempt gets this number."""
        return len(self.assigned_at_seconds)

    def accepts(self, attempt: AttemptId) -> bool:
        """Whether this attempt's update would count: its task has none, and it isn't void."""
        return self.life.may("publish") and attempt.attempt >= self.first_to_count

    @property
    def overhead_seconds(self) -> float | None:
        """Its attempt's seconds without training, such as loading and messages; None if unknown."""
        if self.update is None or self.update.train_seconds <= 0:
            return None
        return max(0.0, self.working_seconds - self.update.train_seconds)

    @property
    def working_seconds(self) -> float:
        """Its attempt's seconds from assignment to update, without the worker's start-up.

        A start-up happens once, so it says nothing about the next attempt.
        """
        return max(0.0, self.completion_seconds - self.startup_seconds)

    @property
    def is_over(self) -> bool:
        """Whether its update is part of a model version, or the round has dropped it."""
        return self.life.state in {TaskState.APPLIED, TaskState.DROPPED}

    def shorten(self, share: float) -> None:
        """Let all attempts train only the first share of the steps."""
        self.share = share
        self.offer = replace(self.offer, samples=max(1, int(share * self.samples)))

    def files(self) -> tuple[PublishedFile, ...]:
        """Return the files of its snapshot and of its unapplied updates."""
        if self.is_over:
            return ()
        updates = [each.update for each in self.withheld]
        updates += [self.update] if self.update is not None else []
        snapshot = (self.snapshot.file,) if self.snapshot is not None else ()
        return (*snapshot, *chain.from_iterable(map(files_of, updates)))


def files_of(update: Update) -> tuple[PublishedFile, ...]:
    """Return the files that an update consists of."""
    state = update.optimizer_state
    return (update.file,) if state is None else (update.file, state)


class Round:
    """One pass over the shards: all in step, or each shard from the newest model version.

    The round does not offer a `held_back` shard yet, because the shard's task of the previous round
    is not over. `published` counts updates, and `applied` the updates that are part of a model
    version. The updates of `audited` shards are withheld. `explained` are the late shards about
    which users know why they stay with their workers. `homes` has the worker that trained a shard
    last; the experiment keeps it.
    """

    def __init__(
        self,
        experiment: str,
        number: int,
        shard_samples: Sequence[int],
        held_back: Collection[int] = (),
        homes: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        self.experiment = experiment
        self.number = number
        self.published = 0
        self.applied = 0
        self.dropped = 0
        self.started_at_seconds: float | None = None
        self.last_update_at_seconds = 0.0
        self.resized = False
        self.held_back = set(held_back)
        self.explained: set[int] = set()
        self._homes = homes
        # We keep counts, because almost every event makes a view, which asks for the maximum.
        self._failed_on: Counter[str] = Counter()
        self._cut(shard_samples)

    def resize(self, shard_samples: Sequence[int]) -> None:
        """Cut the round into shards of other sizes, before the first assignment."""
        self.resized = True
        self._cut(shard_samples)

    def _cut(self, shard_samples: Sequence[int]) -> None:
        sizes = enumerate(shard_samples)
        home = self._homes.get
        self.tasks = [ShardTask(self.number, shard, size, home(shard)) for shard, size in sizes]
        # In falling order, because the lowest shard goes first, and removing a list's last entry
        # takes the same time at any length.
        numbers = reversed(range(len(self.tasks)))
        self._pending = [shard for shard in numbers if shard not in self.held_back]
        self._pending_at: dict[str | None, list[int]] = {}
        for shard in self._pending:
            self._pending_at.setdefault(home(shard), []).append(shard)
        self._waiting: dict[int, float] = {}
        self._held: set[int] = set()
        self.audited: set[int] = set()
        self.times = UpdateTimes()
        self._overheads: list[float] = []

    def recount(self) -> None:
        """Count again, and offer what is pending, after its tasks have been restored."""
        for task in self.tasks:
            if task.held_by:
                self._held.add(task.shard)
            if task.withheld:
                self.audited.add(task.shard)
            if task.life.state is not TaskState.PENDING:
                self._no_longer_pending(task.shard)
            self._failed_on.update(task.offer.failed_on)
            self.applied += task.life.state is TaskState.APPLIED
            self.dropped += task.life.state is TaskState.DROPPED
            if task.update is not None:
                self._count(task)
        begun = [task.assigned_at_seconds[0] for task in self.tasks if task.attempts]
        self.started_at_seconds = min(begun, default=None)

    @property
    def complete(self) -> bool:
        """Whether every task is published or dropped."""
        return self.published + self.dropped == len(self.tasks)

    @property
    def is_over(self) -> bool:
        """Whether every task is part of a model version, or dropped."""
        return self.applied + self.dropped == len(self.tasks)

    @property
    def outstanding(self) -> int:
        """How many tasks are on offer or running, without an update."""
        return len(self.tasks) - self.published - self.dropped - len(self.held_back)

    @property
    def begun(self) -> bool:
        """Whether any of its shards has been assigned."""
        return self.started_at_seconds is not None

    @property
    def any_pending(self) -> bool:
        """Whether a shard is pending and not kept back."""
        return bool(self._pending)

    def pending(self, count: int, idle: Iterable[str] = ()) -> tuple[PendingTask, ...]:
        """Return the first `count` pending tasks, and the first at home with each idle worker.

        They are in shard order.
        """
        shown = self._pending[-count:] if count > 0 else []
        if len(shown) < len(self._pending):
            at_home = (self._pending_at.get(name, ())[-1:] for name in idle)
            shown = sorted({*shown, *chain.from_iterable(at_home)}, reverse=True)
        return tuple(self.tasks[shard].offer for shard in reversed(shown))

    def enough_for(self, idle: KeysView[str]) -> int:
        """Return how many pending tasks a policy must see to find one for each idle worker."""
        # A policy gives a worker no task that it failed on while another worker can have it. So the
        # policy skips at most as many tasks as the worst worker has failures, and this many tasks
        # hold one for every idle worker. If we showed all pending tasks, each event would cost time
        # in proportion to the round's length.
        failed = self._failed_on.keys() & idle
        return len(idle) + max((self._failed_on[name] for name in failed), default=0)

    def find(self, attempt: AttemptId) -> ShardTask | None:
        """Return the task of this attempt, or None if this round has no such attempt."""
        if (attempt.experiment, attempt.round) != (self.experiment, self.number):
            return None
        # The numbers come from a worker's message, so they may be anything.
        if not 0 <= attempt.shard < len(self.tasks):
            return None
        task = self.tasks[attempt.shard]
        return task if 0 <= attempt.attempt < task.attempts else None

    def hold_back(self, shard: int) -> None:
        """Stop offering a shard; one that has an update stays as it is."""
        if self.tasks[shard].life.state is TaskState.PENDING:
            self._no_longer_pending(shard)
            self.held_back.add(shard)

    def release(self, shard: int) -> None:
        """Offer a held-back shard."""
        self.held_back.remove(shard)
        task = self.tasks[shard]
        task.offer = replace(task.offer, home=self._homes.get(shard))
        self._offer(shard)

    def assign(self, shard: int, worker: str, at_seconds: float) -> AttemptId:
        """Assign a task to a worker, alone or beside others; return the new attempt."""
        task = self.tasks[shard]
        if task.life.state is TaskState.PENDING:
            self._no_longer_pending(shard)
        task.life.step("assign")
        self._held.add(shard)
        attempt = self._attempt(task, task.attempts)
        task.held_by[worker] = attempt
        task.began_at.append(task.offer.saved)
        # If we give up this attempt as well, any worker may have the next one. A policy may have
        # taken it from its home.
        task.offer = replace(task.offer, meant_for=None, home=None)
        task.assigned_at_seconds.append(at_seconds)
        task.assigned_to.append(worker)
        if self.started_at_seconds is None:
            self.started_at_seconds = at_seconds
        return attempt

    def withhold(self, withheld: Withheld) -> None:
        """Keep an update back, and offer its task to a worker that begins at the first step."""
        task = self.tasks[withheld.attempt.shard]
        task.withheld.append(withheld)
        self.audited.add(task.shard)
        task.snapshot = None
        task.offer = replace(task.offer, saved=0.0)
        if withheld.worker in task.held_by:
            self.give_up(task.shard, withheld.worker, None)

    def publish(self, accepted: Accepted, at_seconds: float) -> None:
        """Note the update of a task that counts; from then on, no worker holds the task."""
        task = self.tasks[accepted.attempt.shard]
        # A late update counts although we gave up its attempt, so the task may be pending again.
        was_pending = task.life.state is TaskState.PENDING
        task.life.step("publish")
        if was_pending:
            self._no_longer_pending(task.shard)
        task.update, task.worker, task.attempt = accepted.update, accepted.worker, accepted.attempt
        task.confirmed = bool(accepted.confirmed_by)
        task.snapshot, task.withheld = None, []
        self.audited.discard(task.shard)
        task.completion_seconds = accepted.completion_seconds
        task.startup_seconds = accepted.startup_seconds
        self._let_go(task)
        self._count(task)
        self.last_update_at_seconds = at_seconds

    def _count(self, task: ShardTask) -> None:
        self.times.add(task.offer.samples, task.working_seconds)
        if (overhead := task.overhead_seconds) is not None:
            insort(self._overheads, overhead)
        self.published += 1

    def give_up(
        self, shard: int, worker: str, failure: Failure | None, *, gone: bool = False
    ) -> None:
        """Take a running task from a worker; `failure` is None if the attempt did not fail.

        If no other worker holds it, it is pending again. `gone` says that the worker is lost, so a
        later worker of its name is probably another process.
        """
        task = self.tasks[shard]
        task.life.step("lose" if len(task.held_by) > 1 else "give-up")
        attempt = task.held_by.pop(worker)
        task.leaving.pop(worker, None)
        if failure is not None:
            # An audited task is not to blame, because another worker has trained it.
            got_further = attempt.attempt in task.furthered or bool(task.withheld)
            task.excused += got_further
            self._blame(task, worker, failure, may_return=gone, got_further=got_further)
        if not task.held_by:
            self._held.remove(shard)
            self._offer(shard)

    def save(self, attempt: AttemptId, snapshot: Snapshot) -> None:
        """Note the snapshot of an attempt, from which the next attempt at its shard continues."""
        task = self.tasks[attempt.shard]
        task.snapshot = snapshot
        task.furthered.add(attempt.attempt)
        task.offer = replace(task.offer, saved=snapshot.share)

    def mean_for(self, shard: int, worker: str) -> None:
        """Reserve a handed-over task for a worker."""
        task = self.tasks[shard]
        task.offer = replace(task.offer, meant_for=worker)

    def drop(self, shards: Sequence[int]) -> None:
        """Continue the round without these shards; from then on, no worker holds them."""
        for task in (self.tasks[shard] for shard in shards):
            if task.life.state is TaskState.PENDING:
                self._no_longer_pending(task.shard)
            task.life.step("drop")
            task.withheld = []
            self.audited.discard(task.shard)
            self._let_go(task)
            self.dropped += 1

    def refuse(self, shard: int, failure: Failure | None) -> None:
        """Make a published task pending again; without a `failure`, its worker is not to blame."""
        task = self.tasks[shard]
        task.life.step("refuse")
        # We removed the updates that other attempts published meanwhile as unneeded, so only a new
        # attempt can bring a usable one.
        task.first_to_count = task.attempts
        if task.worker is not None and failure is not None:
            self._blame(task, task.worker, failure)
        self.times.remove(task.offer.samples, task.working_seconds)
        if (overhead := task.overhead_seconds) is not None:
            del self._overheads[bisect_left(self._overheads, overhead)]
        # We removed its snapshots when it was published.
        task.offer = replace(task.offer, saved=0.0)
        task.worker = task.attempt = task.update = None
        self.published -= 1
        self._offer(shard)

    def apply(self, shard: int) -> Update | None:
        """Mark a task's update as part of a model version; return the update."""
        task = self.tasks[shard]
        task.life.step("apply")
        self.applied += 1
        return task.update

    @property
    def held(self) -> list[ShardTask]:
        """The tasks that workers hold, in shard order; a round may have thousands of others."""
        return [self.tasks[shard] for shard in sorted(self._held)]

    def holders(self) -> tuple[tuple[AttemptId, str], ...]:
        """Return the running attempts and their workers, in shard order."""
        return tuple((a, worker) for task in self.held for worker, a in task.held_by.items())

    def unreported(self) -> tuple[tuple[AttemptId, str], ...]:
        """Return the attempts whose updates would still count, and their workers.

        This includes attempts that we gave up, because their updates may have been published
        before.
        """
        return tuple(
            (self._attempt(task, number), task.assigned_to[number])
            for task in self.tasks
            if task.life.may("publish")
            for number in range(task.first_to_count, task.attempts)
        )

    def _attempt(self, task: ShardTask, number: int) -> AttemptId:
        return AttemptId(
            experiment=self.experiment, round=self.number, shard=task.shard, attempt=number
        )

    @property
    def overhead_seconds(self) -> float:
        """The median seconds that published attempts spent besides training; 0 if unknown."""
        rising, count = self._overheads, len(self._overheads)
        return (rising[(count - 1) // 2] + rising[count // 2]) / 2 if count else 0.0

    def wait(self, shard: int, until_seconds: float) -> None:
        """Keep back a pending task until a given time."""
        self._no_longer_pending(shard)
        self._waiting[shard] = until_seconds

    def offer_again(self, at_seconds: float) -> None:
        """Offer the policy the tasks whose wait is over."""
        for shard in [one for one, until in self._waiting.items() if until <= at_seconds]:
            del self._waiting[shard]
            self._offer(shard)

    @property
    def waiting(self) -> KeysView[int]:
        """The pending shards that wait before a retry."""
        return self._waiting.keys()

    def _blame(
        self,
        task: ShardTask,
        worker: str,
        failure: Failure,
        *,
        may_return: bool = False,
        got_further: bool = False,
    ) -> None:
        task.failed.append(failure)
        before = task.offer.failed_on
        # An attempt that got further says nothing against its worker, however often that is lost.
        welcome = may_return and (got_further or worker not in before)
        lost_on = task.offer.lost_on - {worker} | ({worker} if welcome else set())
        task.offer = replace(task.offer, failed_on=(*before, worker), lost_on=lost_on)
        self._failed_on[worker] += 1

    def _let_go(self, task: ShardTask) -> None:
        self._held.discard(task.shard)
        task.held_by.clear()
        task.leaving.clear()

    def _offer(self, shard: int) -> None:
        insort(self._pending, shard, key=neg)
        home = self.tasks[shard].offer.home
        insort(self._pending_at.setdefault(home, []), shard, key=neg)

    def _no_longer_pending(self, shard: int) -> None:
        if shard in self.held_back:
            self.held_back.remove(shard)
        elif self._waiting.pop(shard, None) is None:
            for shards in self._pending, self._pending_at[self.tasks[shard].offer.home]:
                del shards[bisect_left(shards, -shard, key=neg)]
