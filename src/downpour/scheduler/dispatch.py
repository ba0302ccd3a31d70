"""Asks the policy what to do, and does it; a policy that asks for what cannot be is not heard.

A policy that does not watch is asked when a worker is idle and a task is pending. One that
watches is asked also when time has passed or something has happened to a task or a worker. Of
heartbeats there are many, so they lead to a look only once in a twentieth of a task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from statistics import median
from typing import assert_never

from downpour.scheduler import commands as do
from downpour.scheduler import events as on
from downpour.scheduler import facts, updates
from downpour.scheduler.experiment import Experiment
from downpour.scheduler.round import Round, Task
from downpour.scheduler.round_view import view_of
from downpour.scheduler.state import Decision, SchedulerState
from downpour.stragglers import (
    Action,
    Assignment,
    Close,
    Handoff,
    Resize,
    RoundView,
    Withdrawal,
    WorkerRequest,
)
from downpour.stragglers.outlook import Outlook
from downpour.values import AttemptId, FailureKind, Forecast, TaskState

# Because a new worker takes seconds to import torch and register: asked again sooner, a policy
# would have a second one started for the same need.
_BETWEEN_REQUESTS_SECONDS = 30.0
_SHARDS_NAMED = 4
# What changes no task and no worker. Heartbeats are most of all events, and a look costs far more
# than taking one in.
_QUIET = on.HeartbeatReceived, on.Forecasts, on.Evaluated
_LOOKS_A_TASK = 20
_BETWEEN_LOOKS_SECONDS = 0.1, 0.5
_BETWEEN_LOOKS_SECONDS_A_TASK = 0.005
"""A look takes about 25 microseconds for each running task: half a percent of a core, so often."""


def decide(state: SchedulerState, event: on.Event | None = None) -> None:
    """Let the policy act on what has happened."""
    experiment = state.active
    current = experiment.round if experiment else None
    if experiment is None or current is None or not experiment.ready or current.aggregating:
        return
    if state.replaying:
        return
    # Before the policy, because both change what it is shown.
    _ask_again(state, experiment, current)
    current.offer_again(state.now_seconds)
    policy = state.policies[experiment.spec.policy]
    waiting = current.any_pending and state.workers.any_idle
    if not waiting and not (policy.watches and _may_have_news(state, event)):
        return
    view = view_of(state, experiment, current, policy)
    if policy.watches:
        state.look_again_at_seconds = view.at_seconds + _between_looks(view)
    for action in policy.decide(view):
        # Because an action may close the round, and the rest was decided for an open one.
        if current.complete:
            return
        _do(state, experiment, current, action)


def _may_have_news(state: SchedulerState, event: on.Event | None) -> bool:
    """Whether an event may change what a policy that watches would do."""
    if isinstance(event, on.HeartbeatReceived) and event.running:
        return state.now_seconds >= state.look_again_at_seconds
    return not isinstance(event, _QUIET)


def _do(state: SchedulerState, experiment: Experiment, current: Round, action: Action) -> None:
    match action:
        case Assignment():
            _assign(state, experiment, current, action)
        case Withdrawal():
            _withdraw(state, current, action)
        case Handoff():
            _hand_over(state, current, action)
        case Close():
            _close(state, current, action)
        case Resize():
            _resize(state, experiment, current, action)
        case WorkerRequest():
            _request(state, current, action)
        case _:
            assert_never(action)


def _assign(
    state: SchedulerState, experiment: Experiment, current: Round, action: Assignment
) -> None:
    task = _task(current, action.shard)
    if task is None or not task.life.may("assign"):
        return
    if action.worker not in state.workers.idle:
        return
    if task.held_by:
        _decided(state, current, f"shard {task.shard} to {action.worker}, too: {action.reason}")
    for holder in filter(None, map(state.workers.get, task.held_by)):
        state.record_forecast(holder)
    forecast = _forecast(state, task, action.worker)
    attempt = current.assign(action.shard, action.worker, state.now_seconds)
    now, samples = state.now_seconds, task.offer.samples
    state.workers.assign(action.worker, attempt, now, samples, forecast)
    asked = _asked(state, experiment, current, attempt, action.worker, action.reason)
    assigned = replace(asked, forecast=forecast)
    state.note(assigned)
    state.do(do.Assign(assigned))


def _asked(
    state: SchedulerState,
    experiment: Experiment,
    current: Round,
    attempt: AttemptId,
    worker: str,
    reason: str,
) -> facts.Assigned:
    """Say all that a worker needs for an attempt."""
    return facts.Assigned(
        cause=state.cause,
        worker=worker,
        attempt=attempt,
        model=experiment.model,
        optimizer_state=experiment.optimizer_states.get(attempt.shard),
        reason=reason,
        snapshot=current.tasks[attempt.shard].snapshot,
        portion=_portion(current, attempt.shard),
    )


def _ask_again(state: SchedulerState, experiment: Experiment, current: Round) -> None:
    """Ask those for their attempts who came back without them."""
    for worker in state.workers.take_empty_handed():
        if worker.running is not None and current.find(worker.running) is not None:
            worker.mentioned_at_seconds = worker.advanced_at_seconds = state.now_seconds
            reason = "asked again: it came back without it"
            asked = _asked(state, experiment, current, worker.running, worker.name, reason)
            state.do(do.Assign(asked))


def _forecast(state: SchedulerState, task: Task, name: str) -> Forecast | None:
    """Foresee how long a worker would take for what is left of a task."""
    worker = state.workers.get(name)
    if worker is None or worker.pace is None:
        return None
    return worker.pace.times(task.offer.samples * (1 - task.offer.saved))


def _withdraw(state: SchedulerState, current: Round, action: Withdrawal) -> None:
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


def _hand_over(state: SchedulerState, current: Round, action: Handoff) -> None:
    attempt = _held(current, action.shard, action.worker)
    holder = state.workers.get(action.worker)
    known = action.meant_for in state.workers.names
    if attempt is None or holder is None or not known or action.worker == action.meant_for:
        return
    task = current.tasks[action.shard]
    if action.worker in task.leaving:
        return
    task.leaving[action.worker] = action.meant_for, state.now_seconds
    move = f"shard {action.shard} from {action.worker} to {action.meant_for}"
    _decided(state, current, f"{move}: {action.reason}")
    state.record_forecast(holder)
    state.note(
        facts.HandOverAsked(
            cause=state.cause,
            worker=action.worker,
            attempt=attempt,
            meant_for=action.meant_for,
            reason=action.reason,
        )
    )
    state.do(do.HandOver(worker=action.worker, attempt=attempt))


def _close(state: SchedulerState, current: Round, action: Close) -> None:
    missing = tuple(task.shard for task in current.tasks if task.life.may("drop"))
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
    _decided(state, current, f"closed without {_shards(missing)}: {action.reason}")
    state.note(
        facts.Dropped(
            cause=state.cause,
            experiment=current.experiment,
            round=current.number,
            shards=missing,
            reason=action.reason,
        )
    )
    state.discard(current.experiment, spent)
    updates.aggregate_if_complete(state, current)


def _resize(state: SchedulerState, experiment: Experiment, current: Round, action: Resize) -> None:
    whole = sum(action.samples) == sum(experiment.shard_samples)
    if current.begun or not whole or min(action.samples) < 1:
        return
    if len(action.samples) != len(current.tasks):
        return
    current.resize(action.samples)
    sizes = f"{min(action.samples)} to {max(action.samples)} samples a shard"
    _decided(state, current, f"cut anew, {sizes}: {action.reason}")
    state.note(
        facts.Resized(
            cause=state.cause,
            experiment=current.experiment,
            round=current.number,
            samples=action.samples,
            reason=action.reason,
        )
    )


def _request(state: SchedulerState, current: Round, action: WorkerRequest) -> None:
    """Ask for a worker, but not again before the last one had time to come."""
    now = state.now_seconds
    if now - state.asked_for_workers_at_seconds >= _BETWEEN_REQUESTS_SECONDS:
        state.asked_for_workers_at_seconds = now
        state.wanted_workers += 1
        _decided(state, current, f"one more worker is asked for: {action.reason}")
        state.note(
            facts.WorkerRequested(
                cause=state.cause, experiment=current.experiment, reason=action.reason
            )
        )


def _decided(state: SchedulerState, current: Round, what: str) -> None:
    """Keep a decision in words, for people who watch."""
    said = f"epoch {current.number + 1}: {what}"
    state.decisions.append(Decision(state.now_seconds, current.experiment, said))


def handed_over(state: SchedulerState, event: on.HandedOver) -> None:
    """Keep what a worker leaves for the one that it is meant for."""
    state.workers.heard(event.worker, state.now_seconds)
    held = state.workers.let_go(event.worker, event.attempt)
    context = state.find(event.attempt)
    if context is None or not held:
        if context is None or context.task.snapshot != event.snapshot:
            state.discard(event.attempt.experiment, (event.snapshot.file,))
        return
    meant_for, _ = context.task.leaving.get(event.worker, ("", 0.0))
    updates.keep(state, event.worker, event.attempt, event.snapshot)
    reason = f"handed over after {event.snapshot.share:.0%}"
    kind = FailureKind.HANDED_OVER
    updates.give_up(state, event.worker, event.attempt, kind, reason)
    if meant_for in state.workers.names and context.task.life.state is TaskState.PENDING:
        context.round.mean_for(context.task.shard, meant_for)


def learn(state: SchedulerState, current: Round) -> None:
    """Take note of how fast workers were in a round that is over."""
    paces = {
        task.worker: task.completion_seconds / task.offer.samples
        for task in current.tasks
        if task.worker is not None and task.attempt is not None
        if task.offer.samples and not task.began_at[task.attempt.attempt]
    }
    usual = median(paces.values()) if paces else 0.0
    for name, pace in paces.items():
        worker = state.workers.get(name)
        if worker is not None and usual > 0:
            worker.slowness.append(pace / usual)


def _task(current: Round, shard: int) -> Task | None:
    return current.tasks[shard] if 0 <= shard < len(current.tasks) else None


def _held(current: Round, shard: int, worker: str) -> AttemptId | None:
    task = _task(current, shard)
    return task.held_by.get(worker) if task is not None else None


def _shards(numbers: Sequence[int]) -> str:
    """Name shards, the first few of many."""
    named = ", ".join(map(str, numbers[:_SHARDS_NAMED]))
    more = f" and {len(numbers) - _SHARDS_NAMED} more" if len(numbers) > _SHARDS_NAMED else ""
    return f"shard{'s' if len(numbers) > 1 else ''} {named}{more}"


def _between_looks(view: RoundView) -> float:
    """Return the seconds until progress is looked at again: few where tasks are short."""
    shortest, longest = _BETWEEN_LOOKS_SECONDS
    usual = Outlook(view).typical_seconds or 0.0
    affordable = _BETWEEN_LOOKS_SECONDS_A_TASK * len(view.running)
    return min(longest, max(shortest, affordable, usual / _LOOKS_A_TASK))


def _portion(current: Round, shard: int) -> tuple[int, int] | None:
    if not current.resized:
        return None
    ends = list(accumulate(task.offer.samples for task in current.tasks))
    return ends[shard] - current.tasks[shard].offer.samples, ends[shard]
