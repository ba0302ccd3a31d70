"""A task: one shard in one round, with its attempts, failures, and the update that counts."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from downpour.base.states import Failure, TaskState
from downpour.base.values import AttemptId, PublishedFile, Snapshot, Update
from downpour.core.scheduler.lifecycle import TASK, Lifecycle
from downpour.core.stragglers import PendingTask


class TaskKey(NamedTuple):
    """Names a task of an experiment."""

    round: int
    shard: int


class ShardTask:
    """The training of one shard in one round.

    `held_by` maps the workers that train the task to their attempts. `worker` and `attempt` belong
    to its update. `offer` is the task as a policy sees it while it is pending. Updates of attempts
    numbered below `first_to_count` no longer count. The next attempt continues from `snapshot`,
    which holds the share `offer.saved` of the work. The attempts numbered in `furthered` published
    one, so their failures do not count, and `excused` is how many of these failed. `assigned_to`
    lists the workers of all attempts, and `began_at` the shares from which the attempts continued.
    `leaving` lists the holders that we asked to hand over the task: it maps each to the worker that
    will continue, and to the time of the request. All attempts train from the model `base`, which
    is version `base_version`, and do the same `share` of the steps. So their updates have the same
    bytes, even if the model has moved on. `samples` counts the samples of the shard; attempts train
    as many of these as `offer` says.
    """

    def __init__(self, round_number: int, shard: int, samples: int) -> None:
        self.shard = shard
        self.samples = samples
        self.share = 1.0
        self.life = Lifecycle(f"task round {round_number} shard {shard}", TASK, TaskState.PENDING)
        self.offer = PendingTask(shard=shard, samples=samples)
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
        """Return the files of its snapshot and of its unapplied update."""
        if self.is_over:
            return ()
        snapshot = (self.snapshot.file,) if self.snapshot is not None else ()
        return snapshot + (files_of(self.update) if self.update is not None else ())


def files_of(update: Update) -> tuple[PublishedFile, ...]:
    """Return the files that an update consists of."""
    state = update.optimizer_state
    return (update.file,) if state is None else (update.file, state)
