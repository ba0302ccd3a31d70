"""The queue of experiments: they wait, are prepared, run and end, one after the other."""

from __future__ import annotations

from downpour.base.states import Ending, ExperimentState
from downpour.base.values import Part, PublishedFile
from downpour.core.scheduler import commands as do
from downpour.core.scheduler import events as on
from downpour.core.scheduler import facts
from downpour.core.scheduler.experiment import Experiment
from downpour.core.scheduler.state import SchedulerState
from downpour.core.scheduler.steps import leading_to, spent_models


def submitted(state: SchedulerState, event: on.ExperimentSubmitted) -> None:
    """Add an experiment to the queue; it begins when all earlier ones have ended."""
    # If an answer is lost, the client repeats its submission under the same name.
    if event.experiment in state.experiments:
        return
    state.experiments[event.experiment] = Experiment(event.experiment, event.spec, event.at_seconds)
    activate_next(state)


def activate_next(state: SchedulerState) -> None:
    """Activate the first waiting experiment, unless one is active."""
    if state.active is not None:
        return
    experiments = state.experiments.values()
    # A dictionary keeps the order of insertion, and so the order of submission.
    waiting = (e for e in experiments if e.life.state is ExperimentState.WAITING)
    state.active = next(waiting, None)
    if state.active is not None:
        state.active.life.step("activate")
        prepare(state, state.active)


def prepare(state: SchedulerState, experiment: Experiment) -> None:
    """Ask the driver to prepare an experiment before its first round or its continuation."""
    state.do(
        do.Prepare(
            experiment=experiment.name,
            spec=experiment.spec,
            dataset=experiment.dataset,
            frozen=experiment.frozen,
            trial=experiment.trial,
            model=experiment.models[-1] if experiment.models else None,
            outer=experiment.outer,
        )
    )


def effect_failed(state: SchedulerState, event: on.EffectFailed) -> None:
    """Fail an experiment because the driver could not carry out a command for it."""
    # An experiment that a user cancelled meanwhile no longer needs its commands.
    experiment = state.active_as(event.experiment)
    if experiment is not None:
        fail(state, experiment, event.reason, asked_wrongly=event.asked_wrongly)


def cancelled(state: SchedulerState, event: on.ExperimentCancelled) -> None:
    """End an experiment that its user has cancelled."""
    experiment = state.experiments.get(event.experiment)
    # An experiment that has ended stays as it is, because the request may have come too late.
    if experiment is not None and experiment.life.may("cancel"):
        experiment.life.step("cancel")
        conclude(state, experiment, ExperimentState.CANCELLED, event.reason)


def disturbed(state: SchedulerState, event: on.Disturbed) -> None:
    """Tell viewers that someone disturbs a process on purpose; this has no other effect."""
    if event.experiment in state.experiments:
        state.decided(event.experiment, f"on purpose: {event.who} {event.what}")


def fail(
    state: SchedulerState, experiment: Experiment, reason: str, *, asked_wrongly: bool = False
) -> None:
    """End an experiment that cannot go on."""
    experiment.life.step("fail")
    experiment.asked_wrongly = asked_wrongly
    conclude(state, experiment, ExperimentState.FAILED, reason)


def publish_if_done(state: SchedulerState, experiment: Experiment) -> None:
    """Publish the result if nothing else is outstanding; first run a test if one is due.

    The test measures the best model, or the last one. The best one is published with the last.
    """
    best, kept, last = experiment.best, experiment.kept_best, experiment.model
    if experiment.needs_test and not experiment.testing:
        experiment.testing = True
        number = best.round if best is not None and kept else experiment.rounds_done - 1
        evaluate(state, experiment, number, kept or last, "test")
    if experiment.may_publish:
        experiment.publishing = True
        leading, name = leading_to(experiment, last), experiment.name
        state.do(do.Publish(experiment=name, model=last, best=kept, leading=leading))


def evaluate(
    state: SchedulerState, experiment: Experiment, number: int, model: PublishedFile, part: Part
) -> None:
    """Ask the driver to measure the model version of a round."""
    leading, name = leading_to(experiment, model), experiment.name
    state.do(do.Evaluate(experiment=name, round=number, model=model, part=part, leading=leading))


def model_published(state: SchedulerState, event: on.ModelPublished) -> None:
    """Finish an experiment whose result is published."""
    experiment = state.active_as(event.experiment)
    if experiment is not None and experiment.publishing:
        experiment.result = event.model
        experiment.life.step("finish")
        conclude(state, experiment, ExperimentState.FINISHED, experiment.why_it_ends)


def conclude(state: SchedulerState, experiment: Experiment, ending: Ending, reason: str) -> None:
    """End an experiment, and activate the next one."""
    experiment.reason = reason
    if state.active is experiment:
        state.active = None
        # We excluded workers because of this experiment's code or labels; the next one has its own.
        state.workers.readmit()
        # We iterate over a copy, because `cancel` removes awaited workers.
        for worker in list(state.workers):
            state.cancel(worker, reason)
    # This comes before `Conclude`, because the driver then removes the remaining files.
    state.discard(experiment.name, (*experiment.close(), *spent_models(experiment)))
    state.note(
        facts.Concluded(
            experiment=experiment.name,
            ending=ending,
            reason=reason,
            asked_wrongly=experiment.asked_wrongly,
            model=experiment.result,
        )
    )
    kept, versions = experiment.files_of_shards(), experiment.files_of_versions()
    name = experiment.name
    state.do(do.Conclude(experiment=name, ending=ending, kept=kept, versions=versions))
    activate_next(state)
