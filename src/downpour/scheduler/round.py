"""One synchronous round: its tasks, which are pending, and what has been published so far.

It keeps the books of a round and moves its tasks by their table; it decides nothing. Whether a
failure ends the experiment, and who trains what, is said elsewhere.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import KeysView, Sequence
from dataclasses import replace
from operator import neg

from downpour.scheduler.lifecycle import TASK, Lifecycle
from downpour.stragglers import PendingTask, RoundView
from downpour.values import AttemptId, Update


class Task:
    """Train one shard in one round.

    `worker` and `attempt` are who is training it, or whose update it has. `offer` is the task as a
    policy sees it while it is pending. `turned_down` are attempts whose files have been removed.
    """

    def __init__(self, round_number: int, shard: int, samples: int) -> None:
        self.shard = shard
        self.life = Lifecycle(f"task round {round_number} shard {shard}", TASK, "pending")
        self.offer = PendingTask(shard=shard, samples=samples)
        self.assigned_at_seconds: list[float] = []
        self.failures = 0
        self.turned_down: set[AttemptId] = set()
        self.worker: str | None = None
        self.attempt: AttemptId | None = None
        self.update: Update | None = None

    @property
    def attempts(self) -> int:
        """How often it has been tried; attempts are numbered below this."""
        return len(self.assigned_at_seconds)

    def welcomes(self, attempt: AttemptId) -> bool:
        """Whether an update of this attempt would count: the first usable one does."""
        return self.life.may("publish") and attempt not in self.turned_down


class Round:
    """Every shard, trained once from the same model version."""

    def __init__(self, experiment: str, number: int, shard_samples: Sequence[int]) -> None:
        self.experiment = experiment
        self.number = number
        self.tasks = [Task(number, shard, samples) for shard, samples in enumerate(shard_samples)]
        self.published = 0
        self.started_at_seconds: float | None = None
        self.last_update_at_seconds = 0.0
        self.aggregating = False
        self._failed_on: Counter[str] = Counter()
        # The lowest shard last: it goes first, and a list gives its last entry away for nothing.
        self._pending = list(reversed(range(len(self.tasks))))

    @property
    def complete(self) -> bool:
        """Whether every task has been published."""
        return self.published == len(self.tasks)

    @property
    def any_pending(self) -> bool:
        """Whether some shard has nobody training it."""
        return bool(self._pending)

    def pending(self, count: int) -> tuple[PendingTask, ...]:
        """Return the first `count` pending tasks, in shard order."""
        first = self._pending[-count:] if count > 0 else []
        return tuple(self.tasks[shard].offer for shard in reversed(first))

    def enough_for(self, idle: KeysView[str]) -> int:
        """Say how many pending tasks hold one for each idle worker that did not fail on it."""
        failed = self._failed_on.keys() & idle
        return len(idle) + max((self._failed_on[name] for name in failed), default=0)

    def view(self, at_seconds: float, idle: KeysView[str], workers: KeysView[str]) -> RoundView:
        """Show the round as a policy sees it."""
        return RoundView(
            round=self.number,
            at_seconds=at_seconds,
            pending=self.pending(self.enough_for(idle)),
            idle=idle,
            workers=workers,
        )

    def find(self, attempt: AttemptId) -> Task | None:
        """Return the task that this attempt was made at, or None where none such was made here."""
        if (attempt.experiment, attempt.round) != (self.experiment, self.number):
            return None
        if not 0 <= attempt.shard < len(self.tasks):
            return None
        task = self.tasks[attempt.shard]
        return task if 0 <= attempt.attempt < task.attempts else None

    def assign(self, shard: int, worker: str, at_seconds: float) -> AttemptId:
        """Give a pending task to a worker; returns the new attempt."""
        task = self.tasks[shard]
        task.life.step("assign")
        self._no_longer_pending(shard)
        task.worker = worker
        task.attempt = AttemptId(
            experiment=self.experiment, round=self.number, shard=shard, attempt=task.attempts
        )
        task.assigned_at_seconds.append(at_seconds)
        if self.started_at_seconds is None:
            self.started_at_seconds = at_seconds
        return task.attempt

    def publish(self, attempt: AttemptId, worker: str, update: Update, at_seconds: float) -> None:
        """Take the update of a task that has none yet."""
        task = self.tasks[attempt.shard]
        was_pending = task.life.state == "pending"
        task.life.step("publish")
        if was_pending:
            self._no_longer_pending(task.shard)
        task.update = update
        task.worker = worker
        task.attempt = attempt
        self.published += 1
        self.last_update_at_seconds = at_seconds

    def give_up(self, shard: int, *, counts: bool) -> None:
        """Take a running task back; `counts` says whether that was the attempt's own failure."""
        task = self.tasks[shard]
        task.life.step("give-up")
        self._again(task, counts=counts)

    def refuse(self, shard: int) -> None:
        """Take a published task back, because its update cannot be used."""
        task = self.tasks[shard]
        task.life.step("refuse")
        if task.attempt is not None:
            task.turned_down.add(task.attempt)
        task.update = None
        self.published -= 1
        self._again(task, counts=True)

    def apply(self) -> tuple[Update, ...]:
        """Mark all updates as part of a model version; returns them in shard order."""
        for task in self.tasks:
            task.life.step("apply")
        return self.updates()

    def updates(self) -> tuple[Update, ...]:
        """Return the published updates in shard order."""
        return tuple(task.update for task in self.tasks if task.update is not None)

    def _again(self, task: Task, *, counts: bool) -> None:
        if counts:
            task.failures += 1
            if task.worker is not None:
                task.offer = replace(task.offer, failed_on=(*task.offer.failed_on, task.worker))
                self._failed_on[task.worker] += 1
        task.worker = None
        task.attempt = None
        insort(self._pending, task.shard, key=neg)

    def _no_longer_pending(self, shard: int) -> None:
        del self._pending[bisect_left(self._pending, -shard, key=neg)]
