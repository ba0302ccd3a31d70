"""Which updates count, which failures are final, and when updates become a version.

One update of a shard counts: the first usable one, from any attempt. The scheduler retries a failed
shard, on another worker if there is one, until the spec's `retries` are used up.
"""

from collections.abc import Sequence

from downpour.base.states import BLAMELESS, REPEATABLE, Failure, FailureKind, TaskState
from downpour.base.values import AttemptId, Snapshot, Update
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.core.scheduler import queue
from downpour.core.scheduler.experiment import Experiment
from downpour.core.scheduler.queue import SchedulerState, TaskContext, is_whole
from downpour.core.scheduler.round import Round, ShardTask, TaskKey, files_of
from downpour.core.scheduler.round_view import may_train
from downpour.core.scheduler.workers import Worker

# Measured without a wait: when the shared directory was gone for a few seconds, a task used up four
# attempts in a tenth of a second. With these waits, three retries last for more than three seconds.
_FIRST_WAIT_SECONDS = 0.5
_LONGEST_WAIT_SECONDS = 32.0


def failed_alike(failures: Sequence[Failure], workers: Sequence[str]) -> tuple[str, ...]:
    """Return the workers on which the task failed exactly like the last time.

    Only a failure that follows from the task itself can be the same on every worker. Unreadable
    files and lost workers are unrelated to the task, even if the reasons agree, so for these the
    result is empty. The `failures` are those of one task, oldest first.
    """
    last = failures[-1] if failures else None
    if last is None or last.kind not in REPEATABLE:
        return ()
    return tuple(w for one, w in zip(failures, workers, strict=True) if one == last)


def wait_seconds(failures: Sequence[Failure]) -> float:
    """Return how long a task waits after its last failure, at a patience of 1.

    Only a failure of the shared directory makes it wait. Without the wait, the next attempts would
    fail as well, and use up all retries before the directory is back. Each such failure of the task
    doubles the time.
    """
    if not failures or failures[-1].kind is not FailureKind.STORE:
        return 0.0
    # We count this task's failures only. Other shards continue meanwhile, and show whether the
    # directory is back.
    times = sum(one.kind is FailureKind.STORE for one in failures)
    return min(_FIRST_WAIT_SECONDS * 2.0 ** (times - 1), _LONGEST_WAIT_SECONDS)


def aggregate_if_due(state: SchedulerState, experiment: Experiment) -> None:
    """Ask for the next model version if enough updates have arrived; never for two at once."""
    # A restarted manager cannot aggregate while it replays and prepares; `rounds` asks later.
    if state.replaying or not experiment.ready or experiment not in state.open:
        return
    if experiment.applying:
        return
    experiment.applying = experiment.due(state.now_seconds)
    if not experiment.applying:
        return
    version, spec = experiment.version, experiment.spec
    is_shown = version + 1 == spec.rounds or experiment.wants_evaluation(version)
    state.do(
        out.Aggregate(
            experiment=experiment.name,
            round=version,
            model=experiment.model,
            whole=is_whole(experiment, version + 1),
            versions=tuple(experiment.models) if spec.publishes_steps else (),
            outer=experiment.outer,
            since_outer=tuple(experiment.since_outer),
            keeps_mean=spec.looks_ahead and is_shown,
            pushes=pushes_of(experiment),
            in_step=spec.in_step,
            mixes=experiment.mode.mixes,
            elastic=experiment.mode.elastic,
            train_seconds=_train_seconds(state, experiment),
        )
    )


def gather(state: SchedulerState, context: TaskContext) -> None:
    """Ask the driver to sum an update that has just arrived, if its version waits for others.

    The driver sums it while workers train the other shards, so less work is left when the last
    update arrives. We skip updates of later rounds, because the model that they move does not exist
    yet.
    """
    experiment, current, task = context
    if state.replaying or not experiment.ready or not experiment.spec.in_step:
        return
    if experiment.round is not current or task.update is None or task.base is None:
        return
    if experiment.due(state.now_seconds) or experiment.has_enough(current):
        return
    state.do(
        out.Gather(
            experiment=experiment.name,
            round=experiment.version,
            shard=task.shard,
            update=task.update,
            model=experiment.model,
            base=task.base,
        )
    )


def _train_seconds(state: SchedulerState, experiment: Experiment) -> float:
    """Return the seconds from the oldest round's first assignment to its last update.

    If shards are rounds apart, versions follow each other faster than rounds. Then we count from
    the last version.
    """
    current = experiment.round
    began = current.started_at_seconds if current is not None else None
    if current is None or began is None:
        return 0.0
    if experiment.spec.in_step:
        return current.last_update_at_seconds - began
    since = experiment.version_at_seconds
    return state.now_seconds - (began if since is None else since)


def pushes_of(experiment: Experiment) -> tuple[out.Push, ...]:
    """Return the updates that become the next version, and how much each counts."""
    return tuple(_push(experiment, key) for key in experiment.applying)


def _push(experiment: Experiment, key: TaskKey) -> out.Push:
    current = experiment.round_of(key.round)
    task = current.tasks[key.shard] if current is not None else None
    if task is None or task.update is None or task.base is None:
        raise RuntimeError(f"{key} of {experiment.name} has no update")
    staleness = experiment.staleness(task)
    return out.Push(
        round=key.round,
        shard=key.shard,
        update=task.update,
        base=task.base,
        staleness=staleness,
        weight=experiment.mode.weight(staleness),
    )


def published(
    state: SchedulerState, event: on.UpdatePublished
) -> tuple[TaskContext, out.Withheld] | None:
    """Take in an update; return it if its task has none yet, and otherwise remove it.

    It comes as the fact that withholds it, if an audit does.
    """
    attempt, update = event.attempt, event.update
    reporter = state.workers.heard(event.worker, state.now_seconds)
    startup_seconds = 0.0
    # This comes before `let_go`, which forgets the attempt. Publishing counts as its last pause.
    if reporter is not None and reporter.running == attempt:
        reporter.advance(state.now_seconds)
        startup_seconds = _startup_seconds(reporter, update, state.now_seconds)
        reporter.started_in = attempt.experiment
    # The worker is free even if its update does not count.
    state.workers.let_go(event.worker, attempt)
    # Also if its experiment is set aside meanwhile: a repeated report must not count a file that we
    # have removed.
    context = state.find(attempt, set_aside=True)
    if context is None or not (
        context.task.accepts(attempt) and _is_of(state, context, attempt, event.worker)
    ):
        # The update comes too late. It should have the bytes of the one that counts, which a
        # repeated report of that one does not contradict.
        if context is not None and attempt != context.task.attempt:
            _contradict(state, context.task, event)
        _discard_needless(state, attempt, update)
        return None
    experiment, task = context.experiment, context.task
    # A lost assignment may give two workers the same attempt.
    if any((each.attempt, each.worker) == (attempt, event.worker) for each in task.withheld):
        return None  # a repeated report
    # We allow twice as long, because workers on one machine import at the same time.
    limit = max(experiment.startup_limit_seconds, 2 * startup_seconds)
    experiment.startup_limit_seconds = limit
    # We know no worker if a restarted manager adopted the update.
    if reporter is not None:
        reporter.tasks_done += 1
        experiment.progress_timeout.learn(reporter.longest_pause_seconds)
    return context, out.Withheld(
        worker=event.worker,
        attempt=attempt,
        update=update,
        numeric_class=_class_of(reporter, context),
        whole=not task.began_at[attempt.attempt],
        completion_seconds=state.now_seconds - task.assigned_at_seconds[attempt.attempt],
        startup_seconds=startup_seconds,
    )


def _class_of(reporter: Worker | None, context: TaskContext) -> str:
    """Return the numeric class of an update; empty if a restarted manager cannot know it."""
    its = reporter.class_for(context.experiment.spec.device) if reporter is not None else ""
    withheld = context.task.withheld
    return its or (withheld[0].numeric_class if withheld else "")


def count(
    state: SchedulerState,
    context: TaskContext,
    arrived: out.Withheld,
    confirmed_by: tuple[str, ...] = (),
) -> None:
    """Let an update count; if an audit confirmed it, these workers made it as well."""
    worker, attempt, update = arrived.worker, arrived.attempt, arrived.update
    # This comes before `Round.publish`, which forgets the holders.
    for holder in filter(None, map(state.workers.get, context.task.held_by)):
        state.cancel(holder, "another attempt at the shard was first")
    # This comes first as well. A task with an update needs no snapshot, and no other update.
    spent = tuple(each for each in context.task.files() if each not in files_of(update))
    accepted = out.Accepted(
        worker=worker,
        attempt=attempt,
        update=update,
        completion_seconds=arrived.completion_seconds,
        startup_seconds=arrived.startup_seconds,
        confirmed_by=confirmed_by,
    )
    context.round.publish(accepted, state.now_seconds)
    context.experiment.homes[attempt.shard] = worker
    context.experiment.update_bytes = sum(file.size_bytes for file in files_of(update))
    context.experiment.arrive(accepted, state.now_seconds)
    state.note(accepted)
    # A good audit ends the need for the version before its worker's unaudited updates.
    models = queue.spent_models(context.experiment) if confirmed_by else ()
    state.discard(context.experiment.name, (*spent, *models))
    gather(state, context)


def _is_of(state: SchedulerState, context: TaskContext, attempt: AttemptId, worker: str) -> bool:
    """Whether a worker's update belongs to the work that its attempt's name stands for now.

    If a journal has lost its end, some workers have attempts that the scheduler does not know. The
    scheduler then gives the same numbers to other attempts. If shards are in step and whole, both
    attempts do the same work, and the worker of the update may have another name by now. Otherwise,
    the update may have begun from another version, or cover another share of the steps.
    """
    spec = context.experiment.spec
    policy = state.policies[spec.policy]
    if spec.in_step and not (policy.shortens or policy.cuts_rounds):
        return True
    return context.task.assigned_to[attempt.attempt] == worker


def _startup_seconds(reporter: Worker, update: Update, now_seconds: float) -> float:
    """Return the seconds that a worker took to start, as part of its first update's time."""
    if not reporter.is_first_attempt:
        return 0.0
    # The worker may have imported for an earlier attempt while this one waited.
    loading = max(update.load_seconds, reporter.startup_seconds)
    rest = now_seconds - reporter.assigned_at_seconds - update.train_seconds
    return max(0.0, min(loading, rest))


def _contradict(state: SchedulerState, task: ShardTask, event: on.UpdatePublished) -> None:
    accepted = task.update
    if accepted is None or accepted.file.checksum == event.update.file.checksum:
        return
    state.note(
        out.Contradicted(
            worker=event.worker,
            attempt=event.attempt,
            update=event.update,
            accepted=accepted,
            accepted_from=task.worker or "",
        )
    )


def keep(state: SchedulerState, worker: str, attempt: AttemptId, new: Snapshot) -> None:
    """Keep a snapshot if it is its task's furthest; remove the other one."""
    context = state.find(attempt)
    if context is None:
        return
    former = context.task.snapshot
    # Heartbeats name the same snapshot, and so does the hand-over of the attempt.
    if former is not None and former.file.name == new.file.name:
        return
    # A copy that began later reports snapshots as well, and these may be less far. An audit must
    # begin at the first step.
    if context.task.withheld or (former is not None and former.steps_done >= new.steps_done):
        state.discard(context.experiment.name, (new.file,))
        return
    context.round.save(attempt, new)
    state.note(out.Saved(worker=worker, attempt=attempt, snapshot=new))
    state.discard(context.experiment.name, (former.file,) if former is not None else ())


def attempt_failed(state: SchedulerState, event: on.AttemptFailed) -> None:
    """Give up an attempt that has failed; if the spec is at fault, fail the experiment."""
    state.workers.heard(event.worker, state.now_seconds)
    held = state.workers.let_go(event.worker, event.attempt)
    context = state.find(event.attempt)
    # If a task has its update, the failure of another attempt does not matter.
    if context is None or not context.task.life.may("publish"):
        return
    # A mistake in the spec fails on every worker.
    if event.failure is FailureKind.SPEC:
        queue.fail(state, context.experiment, event.reason, asked_wrongly=True)
    # A worker may report a failure of an attempt that we took from it before.
    elif held:
        if event.failure is FailureKind.OTHER_CODE:
            state.exclude(event.worker, context.experiment, event.reason)
        # The experiment stays as it is meanwhile: workers look for the folder for a while.
        if event.failure is FailureKind.DATASET:
            queue.prepare(state, context.experiment)
        give_up(state, event.worker, event.attempt, event.failure, event.reason)


def give_up(
    state: SchedulerState, worker: str, attempt: AttemptId, failure: FailureKind, reason: str
) -> None:
    """Take the task of an attempt from its worker, and end the experiment if it failed too often.

    A worker that leaves or gets an order to stop has not failed, so this costs the task no retry.
    Neither does an attempt that got further, because it published a newer snapshot.
    """
    context = state.find(attempt)
    if context is None:
        return
    state.note(out.GivenUp(worker=worker, attempt=attempt, failure=failure, reason=reason))
    take_back(state, context.round, attempt.shard, worker, Failure(failure, reason))
    fail_if_hopeless(state, context, reason)


def take_back(
    state: SchedulerState, current: Round, shard: int, worker: str, failure: Failure
) -> None:
    """Take a task from its worker; if the shared directory failed, wait before a retry."""
    blamed = None if failure.kind in BLAMELESS else failure
    current.give_up(shard, worker, blamed, gone=state.workers.get(worker) is None)
    if failure.kind is FailureKind.STORE:
        let_wait(state, current, shard)


def refuse(state: SchedulerState, context: TaskContext, failure: Failure) -> None:
    """Make a published task with an unusable update pending again; wait before a retry."""
    experiment, current, task = context
    experiment.leave(TaskKey(current.number, task.shard))
    current.refuse(task.shard, None if failure.kind in BLAMELESS else failure)
    if failure.kind is FailureKind.STORE:
        let_wait(state, current, task.shard)


def take_out(
    state: SchedulerState,
    context: TaskContext,
    reason: str,
    kind: FailureKind = FailureKind.STORE,
) -> None:
    """Take out an update that counted and cannot be used; a worker then retrains its task."""
    task = context.task
    worker, attempt, update = task.worker, task.attempt, task.update
    if worker is None or attempt is None or update is None:
        return
    _take_back_next(state, context)
    refuse(state, context, Failure(kind, reason))
    state.note(out.GivenUp(worker=worker, attempt=attempt, failure=kind, reason=reason))
    state.discard(context.experiment.name, files_of(update))
    fail_if_hopeless(state, context, reason)


def _take_back_next(state: SchedulerState, context: TaskContext) -> None:
    """Withdraw a shard's next task if it began from an unusable update."""
    experiment, shard = context.experiment, context.task.shard
    following = experiment.round_of(context.round.number + 1) if experiment.mode.overlaps else None
    held = following.tasks[shard].held_by if following is not None else {}
    for name, attempt in list(held.items()):
        reason = "the update that it began from cannot be used"
        worker = state.workers.get(name)
        if worker is not None:
            state.cancel(worker, reason)
        give_up(state, name, attempt, FailureKind.WITHDRAWN, reason)


def let_wait(state: SchedulerState, current: Round, shard: int) -> None:
    """Let a task wait before a retry if no worker holds it."""
    task = current.tasks[shard]
    if task.life.state is TaskState.PENDING:
        seconds = wait_seconds(task.failed) * state.patience
        current.wait(shard, state.now_seconds + seconds)


def fail_if_hopeless(state: SchedulerState, context: TaskContext, reason: str) -> None:
    """End the experiment if a task has failed too often or would fail on every worker."""
    failures = context.task.failures
    alike = failed_alike(context.task.failed, context.task.offer.failed_on)
    if context.task.withheld:
        return  # another worker has trained it
    shard = context.task.shard
    # A single machine may be at fault. If two fail with exactly the same words, or if no other
    # machine can show who is at fault, the task is.
    if len(set(alike)) > 1 or (len(alike) > 1 and _able(state, context) == set(alike)):
        queue.fail(state, context.experiment, _as_everywhere(context, alike, reason))
        return
    if failures > context.experiment.spec.retries:
        failed_on = ", ".join(dict.fromkeys(context.task.offer.failed_on))
        times = f"{failures} times" if failures > 1 else "once"
        times += " without progress" if context.task.excused else ""
        story = f"shard {shard} of round {context.round.number + 1} failed {times}"
        queue.fail(state, context.experiment, f"{story} (on {failed_on}), last: {reason}")


def _able(state: SchedulerState, context: TaskContext) -> set[str]:
    """Return the workers that may train a task; asked seldom, because it looks at all workers."""
    experiment = context.experiment
    names = state.workers.able_for(experiment.name)
    return {name for name in names if may_train(state, experiment, context.task, name)}


def _discard_needless(state: SchedulerState, attempt: AttemptId, update: Update) -> None:
    """Remove an update that comes too late, but keep files that a shard needs.

    A worker may repeat a report after its update has become part of a version. The report then
    names the optimizer state with which the shard continues.
    """
    experiment = state.experiments.get(attempt.experiment)
    if experiment is not None and experiment.knows(attempt):
        files = (f for f in files_of(update) if not experiment.needs(attempt.shard, f))
        state.discard(experiment.name, tuple(files))


def _as_everywhere(context: TaskContext, alike: Sequence[str], reason: str) -> str:
    """Return the reason for ending an experiment whose task cannot succeed, with a remedy."""
    task, spec = context.task, context.experiment.spec
    workers = list(dict.fromkeys(alike))
    where = f"on {' and '.join(workers)}" if len(workers) > 1 else f"twice on {workers[0]}"
    story = f"shard {task.shard} of round {context.round.number + 1} failed alike {where}"
    text = f"{story}, so this is deterministic: {reason}"
    if task.failed[-1].kind is FailureKind.NON_FINITE:
        text += f"; lower learning_rate first (it is {spec.learning_rate:g})"
    return text
