"""Begins and ends rounds, and acts on their aggregations and evaluations."""

from __future__ import annotations

from downpour.base.states import ExperimentState, Failure, FailureKind, unmeasured
from downpour.core.scheduler import commands as do
from downpour.core.scheduler import dispatch, facts, queue, updates
from downpour.core.scheduler import events as on
from downpour.core.scheduler.experiment import Experiment
from downpour.core.scheduler.round import TaskKey, files_of
from downpour.core.scheduler.state import SchedulerState, TaskContext
from downpour.core.scheduler.steps import spent_models
from downpour.core.scheduler.updates import aggregate_if_due


def prepared(state: SchedulerState, event: on.Prepared) -> None:
    """Begin the first round, or continue where an earlier manager stopped."""
    experiment = state.active_as(event.experiment)
    # The preparation continues after a cancellation, so it may end when another experiment is
    # active.
    if experiment is None or (
        experiment.life.state is not ExperimentState.PREPARING and experiment.ready
    ):
        return
    made, asked = len(event.shard_samples), experiment.spec.shards
    # Tasks, optimizer states and a worker's examples all use the spec's shard numbers.
    if made != asked:
        queue.fail(state, experiment, f"the dataset was cut into {made} shards instead of {asked}")
    elif experiment.ready:
        _start(state, experiment, event)
    elif (event.dataset, event.shard_samples) != (experiment.dataset, experiment.shard_samples):
        queue.fail(state, experiment, "the dataset is not the one that this experiment began with")
    else:
        _go_on(state, experiment)


def _start(state: SchedulerState, experiment: Experiment, event: on.Prepared) -> None:
    experiment.life.step("start")
    experiment.dataset = event.dataset
    experiment.frozen = event.frozen
    experiment.trial = event.trial
    experiment.shard_samples = event.shard_samples
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
    experiment.ready = True
    for number, model in experiment.evaluating.items():
        queue.evaluate(state, experiment, number, model, experiment.part)
    if experiment.rounds:
        # Workers may have published updates that they did not report before they were gone. They
        # may have been gone for so long that we gave up their attempts during the preparation.
        attempts = tuple(each for current in experiment.rounds for each in current.unreported())
        if attempts:
            state.do(do.Adopt(experiment=experiment.name, attempts=attempts))
    else:
        experiment.testing = False  # the earlier manager's test ended with it
        queue.publish_if_done(state, experiment)


def aggregated(state: SchedulerState, event: on.Aggregated) -> None:
    """Take in a model version: end the rounds that are over with it, and begin others."""
    experiment = state.active_as(event.experiment)
    if experiment is None or event.round != experiment.version:
        return
    if state.replaying:
        # We repeat the old decision: updates that came meanwhile are in no version.
        named = tuple(TaskKey(*part) for part in event.parts)
        experiment.applying = named or experiment.of_oldest_round()
    if not experiment.applying:
        return
    experiment.version_at_seconds = state.now_seconds
    over, spent = experiment.take_version(event.model, event.outer, event.own)
    models = spent_models(experiment)  # before others begin from the kept ones
    for current in over:
        dispatch.learn(state, current)
    experiment.start_rounds()
    dispatch.decide(state)  # comes first, so that no worker waits for the removal of files
    for current in over:
        if current.number in experiment.evaluating:
            queue.evaluate(state, experiment, current.number, event.model, experiment.part)
    aggregate_if_due(state, experiment)  # a version that is due should not wait either
    state.discard(experiment.name, (*spent, *models))
    queue.publish_if_done(state, experiment)


def aggregation_failed(state: SchedulerState, event: on.AggregationFailed) -> None:
    """Let workers retrain the shards whose updates are unusable."""
    experiment = state.active_as(event.experiment)
    if experiment is None or not experiment.applying or event.round != experiment.version:
        return
    rounds = {key.shard: experiment.round_of(key.round) for key in experiment.applying}
    experiment.applying = ()
    for shard, reason in event.reasons:
        current = rounds[shard]
        # One refused shard may end the experiment, and with it the round.
        if experiment.life.state is ExperimentState.RUNNING and current is not None:
            _refuse(state, TaskContext(experiment, current, current.tasks[shard]), reason)


def _refuse(state: SchedulerState, context: TaskContext, reason: str) -> None:
    task = context.task
    worker, attempt, update = task.worker, task.attempt, task.update
    if worker is None or attempt is None or update is None:
        return
    _take_back_next(state, context)
    updates.refuse(state, context.experiment, context.round, task.shard, reason)
    updates.note_given_up(state, worker, attempt, Failure(FailureKind.STORE, reason))
    state.discard(context.experiment.name, files_of(update))
    updates.fail_if_hopeless(state, context, reason)


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
        updates.give_up(state, name, attempt, FailureKind.WITHDRAWN, reason)


def evaluated(state: SchedulerState, event: on.Evaluated) -> None:
    """Note how good a model version is."""
    experiment = state.active_as(event.experiment)
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
        state.log(f"stopped after epoch {last}: {experiment.why_it_ends}")
    state.discard(experiment.name, spent_models(experiment))
    # Training may have waited for this evaluation.
    experiment.start_rounds()
    queue.publish_if_done(state, experiment)


def _note_best(state: SchedulerState, experiment: Experiment, best: on.Best) -> None:
    fact = facts.Improved(
        experiment=experiment.name, round=best.round, value=best.value, model=best.model
    )
    state.note(fact)
