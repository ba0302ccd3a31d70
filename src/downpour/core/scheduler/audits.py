"""Audits: a second worker trains a task again, and a worker that computes wrong gets no more tasks.

The spec's `audit` is a share of the tasks. We draw them by the seed and a secret of the manager, so
that a worker cannot know which of its updates we compare. Each worker's first tasks are audited as
well. An audited update is withheld until another worker of the same numeric class has trained the
task from the start. If both updates have the same bytes, the first one counts. If not, a third
worker decides, and the wrong worker tries again. If it repeats its wrong bytes, it has wrong code
or a broken library. If it does not, it is flaky, as with bad memory. Three workers with three
results show that the task does not repeat its bytes. Then we blame no worker, and audit nothing
more.

If shards are in step, we draw whole rounds. An audited round takes about twice as long, whether we
audit one of its tasks or all.
"""

import hashlib
from collections.abc import Iterator, Sequence

from downpour.base.states import FailureKind, TaskState
from downpour.core.scheduler import outputs as out
from downpour.core.scheduler import queue, updates
from downpour.core.scheduler.experiment import Experiment
from downpour.core.scheduler.queue import SchedulerState, TaskContext
from downpour.core.scheduler.round import Round, ShardTask, TaskKey, files_of
from downpour.core.scheduler.round_view import agreed, auditors, may_train, repeats

LATE_AUDITS = 3
"""How many first tasks of a worker are audited if it joins after the experiment has begun."""
_REGISTERED_SECONDS = 10.0


def take(state: SchedulerState, context: TaskContext, update: out.Withheld) -> None:
    """Count an update that has arrived, or withhold it if its task is audited."""
    if not _is_audited(state, context, update):
        updates.count(state, context, update)
        return
    if context.task.withheld and not update.whole:
        # Its beginning may be another worker's, so it proves nothing.
        state.discard(context.experiment.name, files_of(update.update))
        return
    spent = context.task.snapshot
    _stop_dependent(state, context, update)
    context.round.withhold(update)
    state.note(update)
    state.discard(context.experiment.name, (spent.file,) if spent is not None else ())
    if context.experiment in state.open:  # else `settle_all` does so when its turn comes
        settle(state, context)


def _stop_dependent(state: SchedulerState, context: TaskContext, update: out.Withheld) -> None:
    """Take the task from workers that continued a snapshot, and from its own later attempt."""
    for name, attempt in list(context.task.held_by.items()):
        is_own = name == update.worker and attempt != update.attempt
        holder = state.workers.get(name)
        if holder is not None and (is_own or context.task.began_at[attempt.attempt] > 0):
            reason = "an audit trains the task from its first step"
            state.cancel(holder, reason)
            if not is_own:
                updates.give_up(state, name, attempt, FailureKind.WITHDRAWN, reason)


def _is_audited(state: SchedulerState, context: TaskContext, update: out.Withheld) -> bool:
    experiment, worker = context.experiment, state.workers.get(update.worker)
    # We do not know the class of a worker whose update a restarted manager found.
    if not experiment.audits or not update.numeric_class:
        return False
    if context.task.withheld or (worker is not None and worker.audits_due > 0):
        return True
    return _is_drawn(state, experiment, context.round, context.task)


def _is_drawn(
    state: SchedulerState, experiment: Experiment, current: Round, task: ShardTask
) -> bool:
    drawn = (current.number,) if experiment.spec.in_step else (current.number, task.shard)
    text = f"{experiment.name} {experiment.spec.seed} {drawn}"
    digest = hashlib.blake2b(text.encode(), key=state.secret, digest_size=8).digest()
    return int.from_bytes(digest) < experiment.spec.audit * 2**64


def settle_all(state: SchedulerState, experiment: Experiment) -> None:
    """Settle the audits that no worker can continue, because workers may have left."""
    # After a restart of the manager, the workers first have time to register.
    if state.now_seconds < state.resumed_at_seconds + _REGISTERED_SECONDS * state.patience:
        return
    audited = [(current, shard) for current in experiment.rounds for shard in current.audited]
    for current, shard in sorted(audited, key=lambda each: (each[0].number, each[1])):
        if not experiment.life.state.ended and shard in current.audited:
            settle(state, TaskContext(experiment, current, current.tasks[shard]))
    if audited:
        updates.aggregate_if_due(state, experiment)  # does nothing if it has ended


def settle(state: SchedulerState, context: TaskContext) -> None:
    """Count the update of an audited task, unless another worker has yet to train the task."""
    withheld = context.task.withheld
    if next(auditors(state, context.experiment, context.task), None) is not None:
        return
    workers = list(dict.fromkeys(each.worker for each in withheld))
    if (right := agreed(withheld)) is not None:
        _conclude(state, context, right)
        return
    if not repeats(withheld):
        reason = f"{', '.join(workers)} each made another update of the same task"
        context.experiment.audits = False
        said = f"no more audits: the task does not repeat its bytes: {reason}"
        state.decided(context.experiment.name, said)
    elif len(workers) > 1:
        said = f"{' and '.join(workers)} disagree, and no third worker here can decide"
        state.decided(context.experiment.name, said)
    else:
        _say_alone(state, context.experiment, withheld[0])
    for other in withheld[1:]:
        _contradict(state, other, withheld[0])
    updates.count(state, context, withheld[0])


def _conclude(state: SchedulerState, context: TaskContext, right: tuple[str, ...]) -> None:
    """Count the update that two workers agree on; quarantine the workers that made others."""
    agreeing = [each for each in context.task.withheld if each.update.checksums == right]
    first, confirming = agreeing[0], {each.worker for each in agreeing[1:]}
    for worker in filter(None, map(state.workers.get, {first.worker, *confirming})):
        worker.audits_due = max(0, worker.audits_due - 1)
    wrong = [each for each in context.task.withheld if each.update.checksums != right]
    for each in wrong:
        _contradict(state, each, first)
    for name in dict.fromkeys(each.worker for each in wrong if each.whole):
        _quarantine(state, context, name, first)
    if not all(each.whole for each in wrong):  # each worker that trained a part may be wrong
        for worker in filter(None, map(state.workers.get, set(context.task.assigned_to))):
            worker.audits_due = LATE_AUDITS
    if context.experiment.life.state.ended:
        return
    confirmed_by = sorted(confirming - {first.worker, *(each.worker for each in wrong)})
    updates.count(state, context, first, tuple(confirmed_by))


def _contradict(state: SchedulerState, other: out.Withheld, counted: out.Withheld) -> None:
    if other.update.checksums != counted.update.checksums:
        state.note(
            out.Contradicted(
                worker=other.worker,
                attempt=other.attempt,
                update=other.update,
                accepted=counted.update,
                accepted_from=counted.worker,
            )
        )


def _quarantine(
    state: SchedulerState, context: TaskContext, name: str, right: out.Withheld
) -> None:
    """Give a worker no more tasks, and let others train again what has not become a version."""
    experiment, worker = context.experiment, state.workers.get(name)
    if name in state.quarantined or experiment.life.state.ended:
        return
    own = [each for each in context.task.withheld if each.worker == name]
    attempt = next(each.attempt for each in own if each.update.checksums != right.update.checksums)
    what = _diagnosis([each.update.checksums for each in own], right.update.checksums)
    where = f"shard {attempt.shard} of {experiment.spec.meetings.named(attempt.round)}"
    waiting, left = list(_waiting_updates(experiment, name)), experiment.unaudited.get(name)
    count = left.tasks - len(waiting) if left is not None else 0
    since = left.first.round if left is not None and count > 0 else None
    reason = f"it {what}, for {where}; {_left_in(experiment, count, since)}"
    assigned_at = context.task.assigned_at_seconds[attempt.attempt]
    process: str | None = worker.process if worker is not None else ""
    if worker is not None and worker.joined_at_seconds > assigned_at:
        process = None  # another one, perhaps on a repaired machine
    fact = out.Quarantined(
        worker=name,
        attempt=attempt,
        reason=reason,
        unaudited=count,
        unaudited_since=since,
        process=process,
    )
    state.note(fact)
    quarantine(state, fact)
    if worker is not None and process is not None:
        running = worker.running
        state.cancel(worker, reason)
        if running is not None:
            updates.give_up(state, name, running, FailureKind.WITHDRAWN, reason)
    for each in waiting:
        updates.take_out(state, each, f"its worker {what}", FailureKind.WITHDRAWN)
    if experiment.spec.stop_if_wrong and since is not None and left is not None:
        without = f"--resume {experiment.name} continues from {left.before.name}, without them"
        why = f"{name}: {reason}; {without}"
        queue.fail(state, experiment, why, back_to=left.before)


def quarantine(state: SchedulerState, fact: out.Quarantined) -> None:
    """Remember a worker that computes wrong, for as long as its process lives."""
    if fact.process is not None:
        state.quarantined[fact.worker] = fact
        state.experiments[fact.attempt.experiment].quarantined[fact.worker] = fact


def _diagnosis(tries: Sequence[tuple[str, ...]], right: tuple[str, ...]) -> str:
    """Say how a worker with one or two tries at a task is wrong."""
    if len(tries) == 1:
        return "computes other bytes than two other workers"
    if right in tries:
        return "is flaky: of two tries, one had other bytes than two other workers"
    if tries[0] == tries[1]:
        return "computes wrong: twice the same bytes, which two other workers do not have"
    return "is flaky: two tries, and each time bytes that no other worker has"


def _left_in(experiment: Experiment, count: int, since: int | None) -> str:
    if since is None:
        return "no other update of it counts without an audit"
    many = f"{count} updates of it count" if count > 1 else "one update of it counts"
    return f"{many} without an audit, from {experiment.spec.meetings.named(since)} on"


def _waiting_updates(experiment: Experiment, worker: str) -> Iterator[TaskContext]:
    """Yield the tasks whose unaudited update by a worker can still be taken out."""
    # If rounds overlap, the shards' next tasks have begun from these.
    for current in experiment.rounds if not experiment.mode.overlaps else ():
        for task in current.tasks:
            waits = TaskKey(current.number, task.shard) not in experiment.applying
            is_its = task.life.state is TaskState.PUBLISHED and task.worker == worker
            if is_its and waits and not task.confirmed:
                yield TaskContext(experiment, current, task)


def _say_alone(state: SchedulerState, experiment: Experiment, update: out.Withheld) -> None:
    """Say once that no worker here can audit a worker's tasks."""
    worker = state.workers.get(update.worker)
    if worker is not None and not worker.told_alone:
        worker.told_alone = True
        state.decided(
            experiment.name,
            f"no audits of {worker.name}: no other worker here computes with "
            f"{update.numeric_class}; `downpour audit {experiment.name}` can audit some later",
        )


def idle_auditors(
    state: SchedulerState, experiment: Experiment
) -> Iterator[tuple[Round, ShardTask, str]]:
    """Yield running tasks that will be audited, each with an idle worker that can do so now."""
    if not (experiment.audits and state.workers.idle):
        return
    allowed = state.idle_for(experiment)
    for current in experiment.rounds:
        for task in current.held if state.workers.idle else ():
            holder = state.workers.get(next(iter(task.held_by)))
            if holder is None or len(task.held_by) > 1 or task.withheld or task.snapshot:
                continue
            if not (holder.audits_due or _is_drawn(state, experiment, current, task)):
                continue
            its = holder.class_for(experiment.spec.device)
            idle = [name for name in allowed if name in state.workers.idle]
            for worker in filter(None, map(state.workers.get, idle)):
                alike = its and worker.class_for(experiment.spec.device) == its
                is_new = worker.name not in task.offer.failed_on
                if alike and is_new and may_train(state, experiment, task, worker.name):
                    yield current, task, worker.name
                    break
