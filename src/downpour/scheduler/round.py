"""One synchronous round: its tasks, which are pending, and what has been published so far."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from downpour.scheduler.lifecycle import TASK, Lifecycle
from downpour.stragglers import PendingTask
from downpour.values import AttemptId, Update


class Task:
    """Train one shard in one round.

    `worker` and `attempt` are who is training it, or whose update it has.
    """

    def __init__(self, experiment: str, round_number: int, shard: int, samples: int) -> None:
        self.shard = shard
        self.samples = samples
        self.life = Lifecycle(f"task round {round_number} shard {shard}", TASK, "pending")
        self.attempts = 0
        self.failures = 0
        self.failed_on: tuple[str, ...] = ()
        self.worker: str | None = None
        self.attempt: AttemptId | None = None
        self.update: Update | None = None
        self._key = (experiment, round_number)

    def next_attempt(self) -> AttemptId:
        """Number the next try."""
        experiment, round_number = self._key
        self.attempts += 1
        return AttemptId(
            experiment=experiment,
            round=round_number,
            shard=self.shard,
            attempt=self.attempts - 1,
        )


class Round:
    """Every shard, trained once from the same model version."""

    def __init__(self, experiment: str, number: int, shard_samples: Sequence[int]) -> None:
        self.number = number
        self.tasks = [
            Task(experiment, number, shard, samples) for shard, samples in enumerate(shard_samples)
        ]
        self.published = 0
        self.started_at_seconds: float | None = None
        self.last_update_at_seconds = 0.0
        self.aggregating = False
        self._pending = list(range(len(self.tasks)))

    @property
    def complete(self) -> bool:
        """Whether every task has been published."""
        return self.published == len(self.tasks)

    @property
    def any_pending(self) -> bool:
        """Whether some shard has nobody training it."""
        return bool(self.pending(1))

    def pending(self, count: int) -> tuple[PendingTask, ...]:
        """Return the first `count` pending tasks, in shard order."""
        shards: list[int] = []
        while self._pending and len(shards) < count:
            shard = heappop(self._pending)
            if shard not in shards[-1:] and self.tasks[shard].life.state == "pending":
                shards.append(shard)
        for shard in shards:
            heappush(self._pending, shard)
        return tuple(
            PendingTask(shard=task.shard, samples=task.samples, failed_on=task.failed_on)
            for task in (self.tasks[shard] for shard in shards)
        )

    def assign(self, shard: int, worker: str, at_seconds: float) -> AttemptId:
        """Give a pending task to a worker; returns the new attempt."""
        task = self.tasks[shard]
        task.life.step("assign")
        task.worker = worker
        task.attempt = task.next_attempt()
        if self.started_at_seconds is None:
            self.started_at_seconds = at_seconds
        return task.attempt

    def publish(self, attempt: AttemptId, worker: str, update: Update, at_seconds: float) -> None:
        """Take the update of a task that has none yet."""
        task = self.tasks[attempt.shard]
        task.life.step("publish")
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
                task.failed_on += (task.worker,)
        task.worker = None
        task.attempt = None
        heappush(self._pending, task.shard)
