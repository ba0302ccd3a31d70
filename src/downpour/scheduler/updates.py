"""What counts, what has failed, and whether a round is complete.

An update counts once, whichever attempt it is of; the first usable one does. What fails is tried
again, on another worker where there is one, until its `retries` are used up.
"""

from __future__ import annotations

from downpour.scheduler import commands as do
from downpour.scheduler import events as on
from downpour.scheduler import facts, queue
from downpour.scheduler.failures import failed_alike, wait_seconds
from downpour.scheduler.round import Round, Task, files_of
from downpour.scheduler.state import SchedulerState, TaskContext
from downpour.scheduler.workers import Worker
from downpour.values import (
    BLAMELESS,
    AttemptId,
    Failure,
    FailureKind,
    Progress,
    Snapshot,
    TaskState,
    Update,
)


def published(state: SchedulerState, event: on.UpdatePublished) -> None:
    """Take an update in: it counts if it is the first usable one of its shard."""
    attempt, update = event.attempt, event.update
    reporter = state.workers.heard(event.worker, state.now_seconds)
    if reporter is not None and reporter.running == attempt:
        reporter.advance(state.now_seconds)
    state.workers.let_go(event.worker, attempt)
    context = state.find(attempt)
    if context is None or not context.task.accepts(attempt):
        _turn_down(state, context, event)
        return
    # Before `publish`, which forgets the holders.
    for holder in filter(None, map(state.workers.get, context.task.held_by)):
        state.cancel(holder, "another attempt at the shard was first")
    spent = context.task.files()
    context.round.publish(attempt, event.worker, update, state.now_seconds)
    if reporter is not None:
        reporter.tasks_done += 1
        context.experiment.progress_timeout.learn(reporter.longest_pause_seconds)
    began = context.task.assigned_at_seconds[attempt.attempt]
    state.note(
        facts.Accepted(
            cause=state.cause,
            worker=event.worker,
            attempt=attempt,
            update=update,
            completion_seconds=state.now_seconds - began,
        )
    )
    state.discard(context.experiment.name, spent)
    aggregate_if_complete(state, context.round)


def _turn_down(
    state: SchedulerState, context: TaskContext | None, event: on.UpdatePublished
) -> None:
    """Remove an update that comes too late; it should be the same as the one that counts."""
    if context is not None and event.attempt != context.task.attempt:
        _contradict(state, context.task, event)
    _discard_needless(state, event.attempt, event.update)


def _contradict(state: SchedulerState, task: Task, event: on.UpdatePublished) -> None:
    """Tell of an update that differs from the one that counts."""
    accepted = task.update
    if accepted is None or accepted.file.checksum == event.update.file.checksum:
        return
    state.note(
        facts.Contradicted(
            cause=state.cause,
            worker=event.worker,
            attempt=event.attempt,
            update=event.update,
            accepted=accepted,
            accepted_from=task.worker or "",
        )
    )


def save(state: SchedulerState, worker: Worker, progress: Progress) -> None:
    """Keep the snapshot that a worker mentions, if it is a new one."""
    new, seen = progress.snapshot, worker.progress.snapshot if worker.progress else None
    if new is None or new == seen:
        return
    keep(state, worker.name, progress.attempt, new)


def remove_needless(state: SchedulerState, worker: Worker, progress: Progress) -> None:
    """Remove the snapshot of an attempt that is not waited for any more, if it is a new one."""
    new = progress.snapshot
    if new is not None and new != worker.needless:
        worker.needless = new
        state.discard(progress.attempt.experiment, (new.file,))


def keep(state: SchedulerState, worker: str, attempt: AttemptId, new: Snapshot) -> None:
    """Keep a snapshot where it is the newest of its task; whichever is older may go."""
    context = state.find(attempt)
    if context is None:
        return
    former = context.task.snapshot
    if former is not None and former.file.name == new.file.name:
        return
    # Because a copy that began later reports snapshots as well, and may be behind.
    if former is not None and former.steps_done >= new.steps_done:
        state.discard(context.experiment.name, (new.file,))
        return
    context.round.save(context.task.shard, new)
    state.note(facts.Saved(cause=state.cause, worker=worker, attempt=attempt, snapshot=new))
    state.discard(context.experiment.name, (former.file,) if former is not None else ())


def attempt_failed(state: SchedulerState, event: on.AttemptFailed) -> None:
    """Take an attempt back that came to nothing."""
    state.workers.heard(event.worker, state.now_seconds)
    held = state.workers.let_go(event.worker, event.attempt)
    context = state.find(event.attempt)
    if context is None or not context.task.life.may("publish"):
        return
    if event.failure is FailureKind.SPEC:
        queue.fail(state, context.experiment, event.reason, asked_wrongly=True)
    elif held:
        if event.failure is FailureKind.OTHER_CODE:
            state.exclude(event.worker, context.experiment, event.reason)
        give_up(state, event.worker, event.attempt, event.failure, event.reason)


def give_up(
    state: SchedulerState, worker: str, attempt: AttemptId, failure: FailureKind, reason: str
) -> None:
    """Make the task of an attempt pending again, now that its worker holds it no longer.

    A worker that leaves or is told to stop has not failed: that costs the task no retry.
    """
    context = state.find(attempt)
    if context is None:
        return
    state.note(
        facts.GivenUp(
            cause=state.cause,
            worker=worker,
            attempt=attempt,
            failure=failure,
            reason=reason,
        )
    )
    take_back(state, context.round, attempt.shard, worker, Failure(failure, reason))
    fail_if_hopeless(state, context, reason)


def take_back(
    state: SchedulerState, current: Round, shard: int, worker: str, failure: Failure
) -> None:
    """Take a task from its worker; where its files were at fault, it waits for better ones."""
    current.give_up(shard, worker, None if failure.kind in BLAMELESS else failure)
    if failure.kind is FailureKind.STORE:
        _let_wait(state, current, shard)


def refuse(state: SchedulerState, current: Round, shard: int, reason: str) -> None:
    """Take a published task back, whose update cannot be used."""
    current.refuse(shard, reason)
    _let_wait(state, current, shard)


def _let_wait(state: SchedulerState, current: Round, shard: int) -> None:
    task = current.tasks[shard]
    if task.life.state is TaskState.PENDING:
        seconds = wait_seconds(task.failed) * state.options.patience
        current.wait(shard, state.now_seconds + seconds)


def fail_if_hopeless(state: SchedulerState, context: TaskContext, reason: str) -> None:
    """End the experiment where a task has failed too often, or would fail everywhere."""
    failures = context.task.failures
    if _would_fail_everywhere(state, context.task):
        queue.fail(state, context.experiment, _as_everywhere(context, reason))
        return
    if failures > context.experiment.spec.retries:
        workers = ", ".join(dict.fromkeys(context.task.offer.failed_on))
        times = f"{failures} times" if failures > 1 else "once"
        story = f"shard {context.task.shard} of round {context.round.number + 1} failed {times}"
        queue.fail(state, context.experiment, f"{story} (on {workers}), last: {reason}")


def _would_fail_everywhere(state: SchedulerState, task: Task) -> bool:
    """Whether it failed alike on two workers, or twice on the only one that is here."""
    alike = failed_alike(task.failed, task.offer.failed_on)
    # Because one machine can be at fault alone; where two fail word for word alike, the task is.
    enough = 1 if len(state.workers) == 1 else 2
    return len(alike) > 1 and len(set(alike)) >= enough


def aggregate_if_complete(state: SchedulerState, current: Round) -> None:
    """Ask for the next model version once every shard that is wanted has its update."""
    active = state.active
    if not current.complete or active is None or not active.ready:
        return
    current.aggregating = True
    began = current.started_at_seconds or 0.0
    state.do(
        do.Aggregate(
            experiment=current.experiment,
            round=current.number,
            model=active.model,
            shards=current.shards(),
            updates=current.updates(),
            train_seconds=current.last_update_at_seconds - began,
        )
    )


def _discard_needless(state: SchedulerState, attempt: AttemptId, update: Update) -> None:
    """Remove an update that comes too late, but never what a repeated report names again."""
    experiment = state.experiments.get(attempt.experiment)
    if experiment is not None and experiment.knows(attempt):
        files = (f for f in files_of(update) if not experiment.needs(attempt.shard, f))
        state.discard(experiment.name, tuple(files))


def _as_everywhere(context: TaskContext, reason: str) -> str:
    """Say that a task cannot succeed, and what to change first."""
    task, spec = context.task, context.experiment.spec
    workers = list(dict.fromkeys(failed_alike(task.failed, task.offer.failed_on)))
    where = f"on {' and '.join(workers)}" if len(workers) > 1 else f"twice on {workers[0]}"
    story = f"shard {task.shard} of round {context.round.number + 1} failed alike {where}"
    said = f"{story}, so this is deterministic: {reason}"
    if task.failed[-1].kind is FailureKind.NON_FINITE:
        said += f"; lower learning_rate first (it is {spec.learning_rate:g})"
    return said
