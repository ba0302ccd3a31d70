"""The scheduler: a deterministic state machine with one door, `handle(event) -> Output`.

Results leave as facts, and orders as commands (`outputs.py`). An event goes to a function on the
one `SchedulerState`: in `queue`, `dispatch` or `updates`, or here. This module begins and ends
rounds, and tracks which workers are present: they join, send heartbeats, stall and leave.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import assert_never

from downpour.base.states import HEARTBEATS_A_SECOND, ExperimentState, FailureKind, unmeasured
from downpour.base.values import AttemptId, Progress
from downpour.core.resolve import with_meetings
from downpour.core.scheduler import audits, dispatch, queue, updates
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.core.scheduler.experiment import Experiment
from downpour.core.scheduler.queue import SchedulerState, TaskContext, spent_models
from downpour.core.scheduler.replay import Entry, EntryEvent, Journaled, apply, take_up
from downpour.core.scheduler.round import TaskKey
from downpour.core.scheduler.workers import Worker
from downpour.core.stragglers.base import POLICIES, Policy


class Scheduler:
    """The only way to change a state: through events, or through another scheduler's journal."""

    def __init__(
        self,
        patience: float = 1.0,
        *,
        policies: Mapping[str, Policy] = POLICIES,
        secret: bytes = b"",
    ) -> None:
        self.state = SchedulerState(patience, policies, secret)

    def handle(self, event: on.Event) -> out.Output:
        """Handle one event; return the facts and commands that follow from it."""
        state = self.state
        state.cause += 1
        # Events come from several threads, so one may have been made before the last one.
        state.now_seconds = max(state.now_seconds, event.at_seconds)
        # Each event gets a new output, because the driver may still be carrying out the last one.
        state.output = out.Output()
        _take_in(state, event)
        # We check after every event: updates come in many ways, and a grace window ends by time
        # alone.
        for experiment in list(state.open):
            updates.aggregate_if_due(state, experiment)
        if not state.replaying:  # it is a fact in the journal
            queue.set_aside_if_drained(state)
        # We also ask the policy after every event, because any event may have freed a worker or a
        # shard.
        dispatch.decide(state, event)
        for experiment in list(state.open):
            if experiment.policy_error:
                queue.fail(state, experiment, experiment.policy_error, asked_wrongly=True)
        if not state.replaying:
            dispatch.open_beside(state, event)
        return state.output

    def replay(self, at_seconds: float, entry: Journaled) -> None:
        """Take in the next entry of a journal; skip it if it changes no result.

        After all entries, the state is the same as before (`durable` shows it), except for the
        workers. They must register again.
        """
        # The manager replays experiments one after the other, so the time may seem to go back.
        self.state.now_seconds = max(self.state.now_seconds, at_seconds)
        if isinstance(entry, EntryEvent):
            # The policy's decisions follow as entries. If we asked it again, it might decide
            # differently, because it would see no workers.
            self.state.replaying = True
            self.handle(entry)
            self.state.replaying = False
        elif isinstance(entry, Entry):
            apply(self.state, at_seconds, entry)

    def take_in(self, experiments: Iterable[Experiment], at_seconds: float) -> None:
        """Take in separately replayed experiments, in order of their submission.

        Experiments that have begun and not ended are open; if none has, the first waiting one is.
        The scheduler must be empty.
        """
        self.state.now_seconds = max(self.state.now_seconds, at_seconds)
        take_up(self.state, experiments)
        queue.activate_next(self.state)

    def resume(self) -> Sequence[out.Command]:
        """Continue the open experiments: ask for their datasets, and await their workers.

        A worker that was busy keeps its attempt. The scheduler asks it for nothing before it has
        registered with this manager. If it does not register in time, other workers get its shard.
        """
        state = self.state
        state.output, state.resumed_at_seconds = out.Output(), state.now_seconds
        for experiment in state.open:
            if experiment.life.state is ExperimentState.RUNNING:
                experiment.ready = False
                # These workers are awaited and not idle. Calls to workers that only the journal
                # knows fail, and each failed call would cost a retry. So one crash of the manager
                # could end the experiment.
                for current in experiment.rounds:
                    for attempt, worker in current.holders():
                        state.workers.expect(worker, attempt, state.now_seconds)
            experiment.preparing = 0  # the earlier manager's preparation ended with it
            queue.prepare(state, experiment)
        return state.output.commands

    def unwanted(self, worker: str, running: Sequence[Progress]) -> list[AttemptId]:
        """Return the attempts that a worker reports but should not be running."""
        known = self.state.workers.get(worker)
        # A lingering attempt does not count, but may finish, so no message has to stop it.
        wanted = {known.running, known.lingering} if known else set()
        return [progress.attempt for progress in running if progress.attempt not in wanted]


def _take_in(state: SchedulerState, event: on.Event) -> None:  # noqa: C901, PLR0912 - one arm an event
    match event:
        case on.ExperimentSubmitted():
            queue.submitted(state, event)
        case on.ExperimentCancelled():
            queue.cancelled(state, event)
        case on.PauseAsked():
            queue.pause_asked(state, event)
        case on.Prepared():
            _prepared(state, event)
        case on.EffectFailed():
            queue.effect_failed(state, event)
        case on.WorkerJoined():
            _joined(state, event)
        case on.WorkerLeft():
            gone(state, event.worker, FailureKind.CANCELLED, event.reason, lost=False)
        case on.WorkerLost():
            gone(state, event.worker, FailureKind.LOST, event.reason, lost=True)
        case on.HeartbeatReceived():
            _heartbeat(state, event)
        case on.UpdatePublished():
            _published(state, event)
        case on.HandedOver():
            dispatch.handed_over(state, event)
        case on.Forecasts():
            _forecasts(state, event)
        case on.AttemptFailed():
            updates.attempt_failed(state, event)
        case on.Aggregated():
            _aggregated(state, event)
        case on.AggregationFailed():
            _aggregation_failed(state, event)
        case on.Evaluated():
            _evaluated(state, event)
        case on.ModelPublished():
            queue.model_published(state, event)
        case on.Disturbed():
            queue.disturbed(state, event)
        case on.BlocksRead():
            pass  # for the record
        case on.Tick():
            _tick(state)
        case _:
            assert_never(event)


def _prepared(state: SchedulerState, event: on.Prepared) -> None:
    """Begin the first round, or continue where an earlier manager stopped."""
    experiment = state.open_as(event.experiment)
    if experiment is not None:
        experiment.preparing = max(0, experiment.preparing - 1)
    # The preparation continues after a cancellation, so it may end after the experiment.
    if experiment is None or (
        experiment.life.state is not ExperimentState.PREPARING and experiment.ready
    ):
        return
    made, asked = len(event.shard_samples), experiment.spec.shards
    # Tasks, optimizer states and a worker's examples all use the spec's shard numbers.
    if made != asked:
        queue.fail(state, experiment, f"the dataset was cut into {made} shards instead of {asked}")
    elif experiment.dataset is None:
        _start(state, experiment, event)
    elif (event.dataset, event.shard_samples) != (experiment.dataset, experiment.shard_samples):
        queue.fail(state, experiment, "the dataset is not the one that this experiment began with")
    else:
        _go_on(state, experiment)


def _start(state: SchedulerState, experiment: Experiment, event: on.Prepared) -> None:
    experiment.life.step("start")
    for worker in state.workers:
        worker.audits_due = max(1, worker.audits_due)
    experiment.dataset = event.dataset
    experiment.frozen = event.frozen
    experiment.trial = event.trial
    experiment.shard_samples = event.shard_samples
    experiment.spec = with_meetings(experiment.spec, event.shard_samples)
    experiment.outer = event.outer
    experiment.start_from(event.model, event.handed_on)
    if experiment.best is not None:
        _note_best(state, experiment, experiment.best)
    for number, model in experiment.evaluating.items():
        queue.evaluate(state, experiment, number, model, experiment.part)
    # Without a better model for long enough, an experiment has nothing left to train.
    queue.publish_if_done(state, experiment)


def _go_on(state: SchedulerState, experiment: Experiment) -> None:
    """Ask again for everything that was outstanding when the earlier manager stopped."""
    if experiment.life.state is ExperimentState.PREPARING:
        experiment.life.step("start")
        experiment.times.last_at = state.now_seconds  # a pause is no part of a round's time
    experiment.ready = True
    for number, model in experiment.evaluating.items():
        queue.evaluate(state, experiment, number, model, experiment.part)
    if experiment.rounds:
        # Workers may have published updates that they did not report before they were gone. They
        # may have been gone for so long that we gave up their attempts during the preparation.
        attempts = tuple(each for current in experiment.rounds for each in current.unreported())
        if attempts:
            state.do(out.Adopt(experiment=experiment.name, attempts=attempts))
    else:
        experiment.testing = False  # the earlier manager's test ended with it
        queue.publish_if_done(state, experiment)


def _published(state: SchedulerState, event: on.UpdatePublished) -> None:
    arrived = updates.published(state, event)
    if arrived is not None:
        audits.take(state, *arrived)


def _aggregated(state: SchedulerState, event: on.Aggregated) -> None:
    """Take in a model version: end the rounds that are over with it, and begin others."""
    experiment = state.open_as(event.experiment)
    if experiment is None or event.round != experiment.version:
        return
    if state.replaying:
        # We repeat the old decision: updates that came meanwhile are in no version.
        named = tuple(TaskKey(*part) for part in event.parts)
        experiment.applying = named or experiment.of_oldest_round()
    if not experiment.applying:
        return
    experiment.version_at_seconds = state.now_seconds
    pushes = updates.pushes_of(experiment)
    over, spent = experiment.take_version(event.model, event.outer, event.own, pushes, event.mean)
    models = spent_models(experiment)  # before others begin from the kept ones
    for current in over:
        experiment.times.close(state.now_seconds, current.started_at_seconds)
        dispatch.learn(state, current)
    experiment.start_rounds()
    dispatch.decide(state)  # comes first, so that no worker waits for the removal of files
    for current in over:
        if current.number in experiment.evaluating:
            queue.evaluate(state, experiment, current.number, event.model, experiment.part)
    updates.aggregate_if_due(state, experiment)  # a version that is due should not wait either
    state.discard(experiment.name, (*spent, *models))
    queue.publish_if_done(state, experiment)


def _aggregation_failed(state: SchedulerState, event: on.AggregationFailed) -> None:
    """Let workers retrain the shards whose updates are unusable."""
    experiment = state.open_as(event.experiment)
    if experiment is None or not experiment.applying or event.round != experiment.version:
        return
    rounds = {key.shard: experiment.round_of(key.round) for key in experiment.applying}
    experiment.applying = ()
    for shard, reason in event.reasons:
        current = rounds[shard]
        # One refused shard may end the experiment, and with it the round.
        if experiment.life.state is ExperimentState.RUNNING and current is not None:
            updates.take_out(state, TaskContext(experiment, current, current.tasks[shard]), reason)


def _evaluated(state: SchedulerState, event: on.Evaluated) -> None:
    experiment = state.open_as(event.experiment)
    if experiment is not None and experiment.testing and event.part == "test":
        experiment.testing = False
        experiment.tested = experiment.last_evaluation = event.evaluation
        queue.publish_if_done(state, experiment)
        return
    if experiment is None or event.round not in experiment.evaluating:
        return
    goal, former = experiment.spec.goal, experiment.best
    if goal is not None and goal.value(event.evaluation) is None:
        reason = f"keep_best = '{goal}': {unmeasured(event.evaluation)}"
        queue.fail(state, experiment, reason, asked_wrongly=True)
        return
    experiment.take_evaluation(event.round, event.evaluation)
    best = experiment.best
    if best is not None and best != former:
        _note_best(state, experiment, best)
    if experiment.has_stopped_early and not experiment.all_rounds_done:
        last = experiment.epoch_of(experiment.rounds_done - 1)
        said = f"stopped after epoch {last}: {experiment.why_it_ends}"
        state.decided(experiment.name, said)
    state.discard(experiment.name, spent_models(experiment))
    # Training may have waited for this evaluation.
    experiment.start_rounds()
    queue.publish_if_done(state, experiment)


def _note_best(state: SchedulerState, experiment: Experiment, best: on.Best) -> None:
    fact = out.Improved(
        experiment=experiment.name, round=best.round, value=best.value, model=best.model
    )
    state.note(fact)


# Each forecast is a line of the record, and one per second would fill most of it.
_QUARTERS = 4


def _joined(state: SchedulerState, event: on.WorkerJoined) -> None:
    """Add a worker; if it still runs the attempt that we assigned, it continues.

    Otherwise, we give up the attempt of a former registration under this name. A worker that runs
    another attempt gets no work before that attempt ends.
    """
    _join(state, event)
    worker = state.workers.get(event.worker)
    if worker is not None:
        worker.labels, worker.process = event.labels, event.process
        worker.numeric_class, worker.processor_class = event.numeric_class, event.processor_class


def _join(state: SchedulerState, event: on.WorkerJoined) -> None:
    name, running = event.worker, event.running
    known = state.workers.heard(name, state.now_seconds)
    quarantined = state.quarantined.get(name)
    if quarantined is not None and not (event.process and event.process == quarantined.process):
        del state.quarantined[name]
    if known is not None and _goes_on(state, known, running):
        return
    # We remove a former registration even if no heartbeat is missing, because a process that
    # restarted at once has lost its attempt.
    former = state.workers.remove(name)
    if former is not None and former.running is not None:
        updates.give_up(state, name, former.running, FailureKind.LOST, f"{name} registered anew")
    worker = state.workers.join(name, state.now_seconds)
    if former is not None and event.process and former.process == event.process:
        worker.joined_at_seconds, worker.audits_due = former.joined_at_seconds, former.audits_due
    elif any(experiment.rounds_done for experiment in state.open):
        worker.audits_due = audits.LATE_AUDITS
    if former is None:
        state.log(f"{name} joined")
    # Any new worker answers a policy's request for one more.
    if state.joined_since < state.wanted_workers:
        state.joined_since += 1
    # If it still runs an attempt, we did not assign that one. A task beside it would be slow, and
    # we would learn a wrong speed.
    if running is not None:
        state.workers.stick(name)


def _goes_on(state: SchedulerState, known: Worker, running: AttemptId | None) -> bool:
    """Let a worker that registers continue its attempt; return whether it does.

    If an awaited worker comes back without its attempt, we ask it for the attempt again. The worker
    may have restarted, or the earlier manager's call may not have reached it.
    """
    now, has_it = state.now_seconds, known.running == running
    if known.is_awaited:
        state.workers.resume(known.name, now, empty_handed=not has_it)
        return True
    if running is None or not has_it:
        return False
    # A registration mentions the attempt as a heartbeat does, so the attempt's timeout restarts.
    known.mentioned_at_seconds = now
    return True


def gone(
    state: SchedulerState, name: str, failure: FailureKind, reason: str, *, lost: bool
) -> None:
    """Remove a worker, and give up its attempt."""
    # A worker may be lost and say goodbye, or several calls may find it lost. The first report
    # counts.
    worker = state.workers.remove(name)
    if worker is None:
        return
    state.note(out.Dismissed(worker=name, reason=reason, lost=lost))
    state.do(out.Dismiss(worker=name))
    state.log(f"{name} {'is lost' if lost else 'left'}: {reason}")
    if worker.running is not None:
        updates.give_up(state, name, worker.running, failure, reason)


def _heartbeat(state: SchedulerState, event: on.HeartbeatReceived) -> None:
    """Note a worker's sign of life, and the progress of its attempt."""
    worker = state.workers.get(event.worker)
    attempts = [progress.attempt for progress in event.running]
    if worker is None or (worker.is_awaited and worker.running not in attempts):
        return  # the answer tells it to register; that call says what it runs
    worker.beat(state.now_seconds)
    worker.interval_seconds = len(state.workers) / HEARTBEATS_A_SECOND
    worker.system = event.system
    # A stuck worker is free only when it reports no attempt. An order to stop does not free it,
    # because it may hang in a step for a long time.
    if not event.running:
        state.workers.unstick(worker.name)
    # It may report two: the attempt that it is stopping, and the one that we have assigned since.
    for progress in event.running:
        new = progress.snapshot
        if progress.attempt == worker.running:
            seen = worker.progress.snapshot if worker.progress else None
            worker.mention(progress, state.now_seconds)
            # Every heartbeat mentions the last snapshot again.
            if new is not None and new != seen:
                updates.keep(state, worker.name, progress.attempt, new)
            return
        # The snapshot of an attempt that no longer counts.
        if progress.attempt == worker.lingering and new is not None and new != worker.needless:
            worker.needless = new
            state.discard(progress.attempt.experiment, (new.file,))
    _doubt(state, worker, elsewhere=bool(event.running))


def _doubt(state: SchedulerState, worker: Worker, *, elsewhere: bool) -> None:
    """Take back an attempt that its worker has not mentioned for too long."""
    attempt = worker.running
    silent = state.now_seconds - worker.mentioned_at_seconds
    if attempt is None or silent < worker.mention_limit_seconds * state.patience:
        return
    what = "has not begun it after" if worker.progress is None else "has not mentioned it for"
    # A worker that reports no other attempt is idle; otherwise it is stuck in the other one.
    _take_back(state, worker, attempt, f"{what} {silent:.0f} s", free=not elsewhere)


def _forecasts(state: SchedulerState, event: on.Forecasts) -> None:
    for name, pace in event.paces:
        worker = state.workers.get(name)
        if worker is not None:
            worker.pace = pace
    running = {worker.running: worker for worker in state.workers if worker.running}
    for attempt, remaining in event.remaining:
        if attempt in running:
            running[attempt].take_forecast(remaining)
            _record_each_quarter(state, running[attempt], attempt)


def _record_each_quarter(state: SchedulerState, worker: Worker, attempt: AttemptId) -> None:
    """Record a running attempt's forecast after each quarter of the attempt's work."""
    context = state.find(attempt)
    if context is None or worker.progress is None:
        return
    # We count quarters of the attempt's own work. So an attempt that continues from the middle gets
    # as many records.
    began = context.task.began_at[attempt.attempt]
    own = (worker.progress.share - began) / (1 - began) if began < 1 else 0.0
    quarters = int(_QUARTERS * own)
    if worker.quarters_recorded < quarters:
        worker.quarters_recorded = quarters
        state.record_forecast(worker)


def _tick(state: SchedulerState) -> None:
    """Check the timeouts of workers' heartbeats and of attempts' steps."""
    for worker in list(state.workers):
        silent = state.now_seconds - worker.seen_at_seconds
        if silent > worker.silence_limit_seconds * state.patience:
            # If an awaited worker does not come back, the earlier manager's crash is to blame and
            # not the task. So this costs no retry.
            kind = FailureKind.CANCELLED if worker.is_awaited else FailureKind.LOST
            gone(state, worker.name, kind, f"no heartbeat for {silent:.0f} s", lost=True)
        elif worker.running is not None:
            _check_progress(state, worker, worker.running)


def _check_progress(state: SchedulerState, worker: Worker, attempt: AttemptId) -> None:
    """Take back an attempt that stands still although its worker sends heartbeats."""
    experiment = state.open_as(attempt.experiment)
    pause = state.now_seconds - worker.active_at_seconds
    if experiment is not None and pause > experiment.progress_timeout.seconds * state.patience:
        publishes = worker.progress is not None and worker.progress.phase == "publishing"
        what = f"has {'published nothing' if publishes else 'made no step'} for {pause:.0f} s"
        state.do(out.Cancel(worker=worker.name, attempt=attempt, reason=f"it {what}"))
        _take_back(state, worker, attempt, what, free=False)


def _take_back(
    state: SchedulerState, worker: Worker, attempt: AttemptId, what: str, *, free: bool
) -> None:
    """Take an attempt from its worker; the worker is then idle if `free`, and stuck otherwise."""
    if free:
        state.workers.release(worker.name, attempt)
    else:
        state.workers.stick(worker.name)
    updates.give_up(state, worker.name, attempt, FailureKind.LOST, f"{worker.name} {what}")
