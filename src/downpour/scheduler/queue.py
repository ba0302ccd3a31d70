"""Whose turn it is: experiments wait, are prepared, and end."""

from __future__ import annotations

from downpour.scheduler import commands as do
from downpour.scheduler import events as on
from downpour.scheduler import facts
from downpour.scheduler.experiment import Experiment
from downpour.scheduler.state import SchedulerState
from downpour.values import Ending, ExperimentState


def submitted(state: SchedulerState, event: on.ExperimentSubmitted) -> None:
    """Take an experiment in; its turn comes when those before it have ended."""
    if event.experiment in state.experiments:
        return
    state.experiments[event.experiment] = Experiment(event.experiment, event.spec, event.at_seconds)
    activate_next(state)


def activate_next(state: SchedulerState) -> None:
    """Let the first that waits have its turn, unless another one has it."""
    if state.active is not None:
        return
    experiments = state.experiments.values()
    waiting = (e for e in experiments if e.life.state is ExperimentState.WAITING)
    state.active = next(waiting, None)
    if state.active is not None:
        state.active.life.step("activate")
        prepare(state, state.active)


def prepare(state: SchedulerState, experiment: Experiment) -> None:
    """Ask for what an experiment needs before its first round, or to go on."""
    state.do(
        do.Prepare(
            experiment=experiment.name,
            spec=experiment.spec,
            dataset=experiment.dataset,
            model=experiment.models[-1] if experiment.models else None,
        )
    )


def effect_failed(state: SchedulerState, event: on.EffectFailed) -> None:
    """Fail an experiment for which something could not be done."""
    experiment = state.active_as(event.experiment)
    if experiment is not None:
        fail(state, experiment, event.reason, asked_wrongly=event.asked_wrongly)


def cancelled(state: SchedulerState, event: on.ExperimentCancelled) -> None:
    """End an experiment that is not wanted any more."""
    experiment = state.experiments.get(event.experiment)
    if experiment is not None and experiment.life.may("cancel"):
        experiment.life.step("cancel")
        conclude(state, experiment, ExperimentState.CANCELLED, event.reason)


def fail(
    state: SchedulerState, experiment: Experiment, reason: str, *, asked_wrongly: bool = False
) -> None:
    """End an experiment that cannot go on."""
    experiment.life.step("fail")
    experiment.asked_wrongly = asked_wrongly
    conclude(state, experiment, ExperimentState.FAILED, reason)


def publish_if_done(state: SchedulerState, experiment: Experiment) -> None:
    """Ask for the result if what has just come in was the last thing outstanding."""
    if experiment.may_publish:
        publish(state, experiment)


def publish(state: SchedulerState, experiment: Experiment) -> None:
    """Ask for the last model version to be published as the result."""
    experiment.publishing = True
    state.do(do.Publish(experiment=experiment.name, model=experiment.model))


def model_published(state: SchedulerState, event: on.ModelPublished) -> None:
    """Finish: the result lies where users look for it."""
    experiment = state.active_as(event.experiment)
    if experiment is not None and experiment.publishing:
        experiment.result = event.model
        experiment.life.step("finish")
        conclude(state, experiment, ExperimentState.FINISHED, "every round is done")


def conclude(state: SchedulerState, experiment: Experiment, ending: Ending, reason: str) -> None:
    """Close an experiment, and let the next one have its turn."""
    experiment.reason = reason
    if state.active is experiment:
        state.active = None
        state.workers.readmit()
        for worker in list(state.workers):
            state.cancel(worker, reason)
    # Before `Conclude`, because a driver removes what is left of the files when it concludes.
    state.discard(experiment.name, experiment.close())
    state.note(
        facts.Concluded(
            cause=state.cause,
            experiment=experiment.name,
            ending=ending,
            reason=reason,
            asked_wrongly=experiment.asked_wrongly,
            model=experiment.result,
        )
    )
    state.do(do.Conclude(experiment=experiment.name, ending=ending))
    activate_next(state)
