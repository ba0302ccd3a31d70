"""Asks the policy what to do, and does it; ignores actions that have become impossible.

The scheduler asks a policy that doesn't watch when a worker is idle and a task is pending. It asks
a policy that watches after a tick as well, and after events about tasks or workers. Heartbeats are
frequent, so they lead to a decision only once in a twentieth of a task. If many tasks run, all
events are frequent, and we limit them, too.
"""

from collections.abc import Collection, Sequence
from itertools import accumulate
from statistics import median
from typing import assert_never

from downpour.base.errors import listed
from downpour.base.states import ExperimentState, FailureKind, TaskState
from downpour.base.values import AttemptId, Forecast, missing
from downpour.core.scheduler import audits, queue, round_view, updates
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.core.scheduler.experiment import Experiment
from downpour.core.scheduler.queue import SchedulerState, leading_to
from downpour.core.scheduler.round import Round, ShardTask
from downpour.core.stragglers import base

# A new worker takes seconds to import torch and register. If we asked sooner, the policy would
# start a second worker for the same need.
_BETWEEN_REQUESTS_SECONDS = 30.0
_SHARDS_NAMED = 4


def decide(state: SchedulerState, event: on.Event | None = None) -> None:
    """Ask the policies of the open experiments, and carry out their actions."""
    for experiment in list(state.open) if not state.replaying else ():
        if experiment.ready and not experiment.paused:
            _decide_for(state, experiment, event)


def _decide_for(state: SchedulerState, experiment: Experiment, event: on.Event | None) -> None:
    _ask_again(state, experiment)
    may_audit = not isinstance(event, round_view.QUIET)
    if may_audit:
        audits.settle_all(state, experiment)
    if experiment.life.state.ended:
        return
    round_view.set_aside(state, experiment)  # comes after, because audits quarantine workers
    # We start with the oldest round, because the others wait for its shards, now or later.
    for current in list(experiment.rounds):
        # If many rounds are open, most of them have only shards that are done or held back.
        if current.outstanding and not experiment.policy_error:
            _decide_on(state, experiment, current, event)
    for current, task, worker in audits.idle_auditors(state, experiment) if may_audit else ():
        reason = "an audit: it trains the task as well"
        _assign(
            state,
            experiment,
            current,
            base.Assignment(shard=task.shard, worker=worker, reason=reason),
        )
    round_view.tell(state, experiment)


def open_beside(state: SchedulerState, event: on.Event) -> None:
    """Open the next waiting experiment as well if the open ones leave a worker that fits it."""
    waits = any(e.life.state is not ExperimentState.RUNNING or e.paused for e in state.open)
    if waits or not (state.open and state.workers.idle) or isinstance(event, round_view.QUIET):
        return
    following = queue.next_one(state)
    if following is None:
        return
    left = state.workers.idle - state.kept_for(state.open)
    workers = filter(None, map(state.workers.get, left))
    if not all(missing(worker.labels, following.spec.needs) for worker in workers):
        queue.reschedule(state, following, "begun beside")
        queue.activate(state, following)


def _decide_on(
    state: SchedulerState, experiment: Experiment, current: Round, event: on.Event | None
) -> None:
    if experiment.has_enough(current):
        reason = f"{current.published} of {len(current.tasks)} updates make the version"
        _close(state, experiment, current, base.Close(reason=reason))
        return
    current.offer_again(state.now_seconds)
    policy = state.policies[experiment.spec.policy]
    # Most events leave nothing to assign. Without this check, each would cost a view.
    waiting = current.any_pending and bool(state.workers.idle and state.idle_for(experiment))
    if not policy.watches and not waiting:
        return
    if policy.watches and not round_view.may_have_news(state, experiment, event, waiting=waiting):
        return
    between, decide = policy.between, policy.decide
    if between is not None and round_view.is_crowded(state, experiment):
        view, decide = round_view.view_of(state, experiment, current, policy, between=True), between
    else:
        view = round_view.view_of(state, experiment, current, policy)
        if policy.watches:
            now = view.at_seconds
            experiment.look_again_at_seconds = now + round_view.between_looks(view)
            experiment.crowded_until_seconds = now + round_view.between_views(view)
    try:
        actions = list(decide(view))
    except Exception as error:  # noqa: BLE001 - a stranger's policy must not stop the manager
        said = f"{type(error).__name__}: {error}"
        experiment.policy_error = f"policy '{experiment.spec.policy}' raised {said}"
        return
    if said := next(filter(None, (_mistake(state, current, each) for each in actions)), ""):
        experiment.policy_error = f"policy '{experiment.spec.policy}' returned {said}"
        return
    _tell_who_stands_by(state, experiment, current, view, actions)
    for action in actions:
        # An action may close the round, but the policy decided the others for an open round.
        if current.complete:
            return
        _do(state, experiment, current, action, view.idle)


def _mistake(state: SchedulerState, current: Round, action: object) -> str:
    """Say what is wrong with an action that never was possible; empty if nothing is."""
    if not isinstance(action, base.Action):
        return f"{action!r}, which is no action"
    if not 0 <= getattr(action, "shard", 0) < len(current.tasks):
        return f"{action!r}, but the round has no such shard"
    if isinstance(action, base.Assignment) and action.worker not in state.workers.names:
        return f"{action!r}, but there is no such worker"
    return ""


def _tell_who_stands_by(
    state: SchedulerState,
    experiment: Experiment,
    current: Round,
    view: base.RoundView,
    actions: Sequence[base.Action],
) -> None:
    """Log one line about each worker that gets none of the waiting shards, until that changes."""
    standing_by = state.policies[experiment.spec.policy].standing_by
    if standing_by is None or not (view.pending and view.idle and view.speeds):
        return
    assigned = sum(isinstance(action, base.Assignment) for action in actions)
    leaves_some = assigned < min(len(view.pending), len(view.idle))
    lines = standing_by(view) if leaves_some else {}
    for name in sorted(lines.keys() - experiment.told_standing_by):
        state.decided(experiment.name, lines[name])
        _explained(state, current, name, lines[name])
    experiment.told_standing_by = frozenset(lines)


def _do(
    state: SchedulerState,
    experiment: Experiment,
    current: Round,
    action: base.Action,
    idle: Collection[str],
) -> None:
    match action:
        case base.Assignment():
            if action.worker in idle:  # the others are kept for an experiment before it
                _assign(state, experiment, current, action)
        case base.Withdrawal():
            _withdraw(state, current, action)
        case base.Handoff():
            if experiment.spec.repeatable:  # else another worker's bytes would differ
                _hand_over(state, experiment, current, action)
        case base.Close():
            _close(state, experiment, current, action)
        case base.Resize():
            _resize(state, experiment, current, action)
        case base.WorkerRequest():
            _request(state, current, action)
        case base.Waiting():
            _wait(state, current, action)
        case _:
            assert_never(action)


def _assign(
    state: SchedulerState, experiment: Experiment, current: Round, action: base.Assignment
) -> None:
    task = _task(current, action.shard)
    if task is None or not task.life.may("assign"):
        return
    if action.worker not in state.workers.idle or not 0 < action.share <= 1:
        return
    if not round_view.may_train(state, experiment, task, action.worker):
        return
    if task.held_by:
        _decided(state, current, f"shard {task.shard} to {action.worker}, too: {action.reason}")
    # The reports use this forecast to estimate the cost of waiting for the holder.
    for holder in filter(None, map(state.workers.get, task.held_by)):
        state.record_forecast(holder)
    attempt = experiment.assign(
        current, action.shard, action.worker, state.now_seconds, action.share
    )
    worker, now, samples = state.workers.get(action.worker), state.now_seconds, task.offer.samples
    pace = worker.pace if worker is not None else None
    forecast = pace.times(samples * (1 - task.offer.saved)) if pace is not None else None
    state.workers.assign(action.worker, attempt, now, samples, forecast)
    command = _asked(state, experiment, current, attempt, action.worker, action.reason, forecast)
    state.note(command.assigned)
    state.do(command)


def _asked(
    state: SchedulerState,
    experiment: Experiment,
    current: Round,
    attempt: AttemptId,
    worker: str,
    reason: str,
    forecast: Forecast | None = None,
) -> out.Assign:
    task = current.tasks[attempt.shard]
    optimizer_state, step = experiment.handed_on(current, attempt.shard)
    assigned = out.Assigned(
        cause=state.cause,
        worker=worker,
        attempt=attempt,
        model=task.base or experiment.model,
        optimizer_state=optimizer_state,
        step=step,
        reason=reason,
        snapshot=task.snapshot,
        portion=_portion(current, task.shard),
        share=task.share,
        forecast=forecast,
    )
    unread = bool(task.failed) and task.failed[-1].kind is FailureKind.STORE
    return out.Assign(assigned, leading_to(experiment, assigned.model), unread=unread)


def _ask_again(state: SchedulerState, experiment: Experiment) -> None:
    """Repeat the request to workers that came back without their attempts."""
    for worker in state.workers.take_empty_handed(experiment.name):
        context = state.find(worker.running) if worker.running is not None else None
        if worker.running is not None and context is not None:
            # Its timeouts restart, as at an assignment. The attempt stays the same, so we count no
            # retry and note no fact.
            worker.mentioned_at_seconds = worker.advanced_at_seconds = state.now_seconds
            reason = "asked again: it registered without the attempt"
            current, attempt = context.round, worker.running
            state.do(_asked(state, experiment, current, attempt, worker.name, reason))


def _withdraw(state: SchedulerState, current: Round, action: base.Withdrawal) -> None:
    attempt = _held(current, action.shard, action.worker)
    worker = state.workers.get(action.worker)
    if attempt is not None and worker is not None:
        _decided(
            state, current, f"shard {action.shard} taken from {action.worker}: {action.reason}"
        )
        state.record_forecast(worker)
        state.cancel(worker, action.reason)
        kind = FailureKind.WITHDRAWN
        updates.give_up(state, action.worker, attempt, kind, action.reason)


def _hand_over(
    state: SchedulerState, experiment: Experiment, current: Round, action: base.Handoff
) -> None:
    attempt = _held(current, action.shard, action.worker)
    holder = state.workers.get(action.worker)
    known = action.meant_for in state.workers.names
    if attempt is None or holder is None or not known or action.worker == action.meant_for:
        return
    task = current.tasks[action.shard]
    if not round_view.may_train(state, experiment, task, action.meant_for):
        return
    # A policy may repeat its request at the next decision, but we ask the worker only once. An
    # audit trains its task from the first step.
    if action.worker in task.leaving or task.withheld:
        return
    task.leaving[action.worker] = action.meant_for, state.now_seconds
    move = f"shard {action.shard} from {action.worker} to {action.meant_for}"
    _decided(state, current, f"{move}: {action.reason}")
    state.record_forecast(holder)
    state.note(
        out.HandOverAsked(
            worker=action.worker, attempt=attempt, meant_for=action.meant_for, reason=action.reason
        )
    )
    state.do(out.HandOver(worker=action.worker, attempt=attempt))


def _close(
    state: SchedulerState, experiment: Experiment, current: Round, action: base.Close
) -> None:
    missing = tuple(task.shard for task in current.tasks if task.life.may("drop"))
    # Without any update there is nothing to aggregate.
    if not current.published or not missing:
        return
    for attempt, name in current.holders():
        worker = state.workers.get(name)
        if worker is None:
            continue
        state.record_forecast(worker)
        if action.leave_running:
            state.workers.let_linger(name, attempt)
        else:
            state.cancel(worker, action.reason)

    spent = tuple(file for shard in missing for file in current.tasks[shard].files())
    current.drop(missing)
    which = f"shard{'s' if len(missing) > 1 else ''} {listed([*map(str, missing)], _SHARDS_NAMED)}"
    _decided(state, current, f"closed without {which}: {action.reason}")
    state.note(
        out.Dropped(
            experiment=current.experiment,
            round=current.number,
            shards=missing,
            reason=action.reason,
        )
    )
    state.discard(current.experiment, spent)
    updates.aggregate_if_due(state, experiment)


def _resize(
    state: SchedulerState, experiment: Experiment, current: Round, action: base.Resize
) -> None:
    # Every example must be in exactly one shard, and no shard may be empty. A policy's mistake must
    # not change the training.
    whole = sum(action.samples) == sum(experiment.shard_samples)
    if current.begun or not whole or min(action.samples) < 1:
        return
    if len(action.samples) != len(current.tasks):
        return
    current.resize(action.samples)
    sizes = f"{min(action.samples)} to {max(action.samples)} samples a shard"
    _decided(state, current, f"cut anew, {sizes}: {action.reason}")
    state.note(
        out.Resized(
            experiment=current.experiment,
            round=current.number,
            samples=action.samples,
            reason=action.reason,
        )
    )


def _wait(state: SchedulerState, current: Round, action: base.Waiting) -> None:
    """Say once per round why a late shard stays with its worker."""
    if _held(current, action.shard, action.worker) is None or action.shard in current.explained:
        return
    current.explained.add(action.shard)
    _decided(state, current, f"shard {action.shard} stays at {action.worker}: {action.reason}")
    _explained(state, current, action.worker, action.reason, action.shard)


def _explained(
    state: SchedulerState, current: Round, worker: str, reason: str, shard: int | None = None
) -> None:
    """Record why the policy does nothing about a worker, or about a shard that it has."""
    state.note(
        out.Explained(
            experiment=current.experiment,
            round=current.number,
            worker=worker,
            reason=reason,
            shard=shard,
        )
    )


def _request(state: SchedulerState, current: Round, action: base.WorkerRequest) -> None:
    """Request a worker, unless the last requested one hasn't had time to join yet."""
    now = state.now_seconds
    if now - state.asked_for_workers_at_seconds >= _BETWEEN_REQUESTS_SECONDS:
        state.asked_for_workers_at_seconds = now
        state.wanted_workers += 1
        _decided(state, current, f"one more worker is asked for: {action.reason}")
        state.note(out.WorkerRequested(experiment=current.experiment, reason=action.reason))


def _decided(state: SchedulerState, current: Round, what: str) -> None:
    experiment = state.experiments[current.experiment]
    state.decided(current.experiment, f"{experiment.spec.meetings.named(current.number)}: {what}")


def handed_over(state: SchedulerState, event: on.HandedOver) -> None:
    """Keep the snapshot of a worker that has handed over, for the worker that continues."""
    giver = state.workers.heard(event.worker, state.now_seconds)
    if giver is not None and giver.running == event.attempt:
        giver.handed_over(event.snapshot.share, state.now_seconds)
    held = state.workers.let_go(event.worker, event.attempt)
    context = state.find(event.attempt)
    if context is None or not held:
        # A repeated report names a snapshot that we keep already.
        if context is None or context.task.snapshot != event.snapshot:
            state.discard(event.attempt.experiment, (event.snapshot.file,))
        return
    meant_for, _ = context.task.leaving.get(event.worker, ("", 0.0))
    updates.keep(state, event.worker, event.attempt, event.snapshot)
    reason = f"handed over after {event.snapshot.share:.0%}"
    kind = FailureKind.HANDED_OVER
    updates.give_up(state, event.worker, event.attempt, kind, reason)
    # That worker may have left meanwhile, or a copy of the shard may still run.
    if meant_for in state.workers.names and context.task.life.state is TaskState.PENDING:
        context.round.mean_for(context.task.shard, meant_for)


def learn(state: SchedulerState, current: Round) -> None:
    """Note how fast workers were in a finished round, relative to each other."""
    # We use only shards that one attempt trained from the beginning, because the times of others
    # cover only a part.
    paces = {
        task.worker: task.working_seconds / task.offer.samples
        for task in current.tasks
        if task.worker is not None and task.attempt is not None
        if task.offer.samples and not task.began_at[task.attempt.attempt]
    }
    usual = median(paces.values()) if paces else 0.0
    for name, pace in paces.items():
        worker = state.workers.get(name)
        if worker is not None and usual > 0:
            worker.slowness.append(pace / usual)


def _task(current: Round, shard: int) -> ShardTask | None:
    return current.tasks[shard] if 0 <= shard < len(current.tasks) else None


def _held(current: Round, shard: int, worker: str) -> AttemptId | None:
    task = _task(current, shard)
    return task.held_by.get(worker) if task is not None else None


def _portion(current: Round, shard: int) -> tuple[int, int] | None:
    # Unless a policy recut the round, it has the shards of the split, and workers read these by
    # number.
    if not current.resized:
        return None
    ends = list(accumulate(task.samples for task in current.tasks))
    return ends[shard] - current.tasks[shard].samples, ends[shard]
