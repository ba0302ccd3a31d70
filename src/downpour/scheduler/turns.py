"""Whose turn it is: experiments wait, are prepared, and end."""

from __future__ import annotations

from downpour.scheduler import commands as do
from downpour.scheduler import events as on
from downpour.scheduler.books import Books
from downpour.scheduler.experiment import Experiment
from downpour.values import Ending, ExperimentState


class Turns:
    """One experiment is active at a time; the next one's turn comes when it ends."""

    def __init__(self, books: Books) -> None:
        self._books = books

    def submitted(self, event: on.ExperimentSubmitted) -> None:
        """Take an experiment in; its turn comes when those before it have ended."""
        if event.experiment in self._books.experiments:
            return
        self._books.experiments[event.experiment] = Experiment(
            event.experiment, event.spec, event.at_seconds
        )
        self.activate_next()

    def activate_next(self) -> None:
        """Let the first that waits have its turn, where nobody has it."""
        if self._books.active is not None:
            return
        experiments = self._books.experiments.values()
        waiting = (e for e in experiments if e.life.state is ExperimentState.WAITING)
        self._books.active = next(waiting, None)
        if self._books.active is not None:
            self._books.active.life.step("activate")
            self.prepare(self._books.active)

    def prepare(self, experiment: Experiment) -> None:
        """Ask for what an experiment needs before its first round, or to go on."""
        self._books.do(
            do.Prepare(
                cause=self._books.cause,
                experiment=experiment.name,
                spec=experiment.spec,
                dataset=experiment.dataset,
                model=experiment.models[-1] if experiment.models else None,
            )
        )

    def effect_failed(self, event: on.EffectFailed) -> None:
        """Fail an experiment for which something could not be done."""
        experiment = self._books.active_as(event.experiment)
        if experiment is not None:
            self.fail(experiment, event.reason, asked_wrongly=event.asked_wrongly)

    def cancelled(self, event: on.ExperimentCancelled) -> None:
        """End an experiment that is not wanted any more."""
        experiment = self._books.experiments.get(event.experiment)
        if experiment is not None and experiment.life.may("cancel"):
            experiment.life.step("cancel")
            self.conclude(experiment, ExperimentState.CANCELLED, event.reason)

    def fail(self, experiment: Experiment, reason: str, *, asked_wrongly: bool = False) -> None:
        """End an experiment that cannot go on."""
        experiment.life.step("fail")
        experiment.asked_wrongly = asked_wrongly
        self.conclude(experiment, ExperimentState.FAILED, reason)

    def publish_if_done(self, experiment: Experiment) -> None:
        """Ask for the result if what has just come in was the last thing outstanding."""
        if experiment.may_publish:
            self.publish(experiment)

    def publish(self, experiment: Experiment) -> None:
        """Ask for the last model version to be published as the result."""
        experiment.publishing = True
        self._books.do(
            do.Publish(cause=self._books.cause, experiment=experiment.name, model=experiment.model)
        )

    def model_published(self, event: on.ModelPublished) -> None:
        """Finish: the result lies where users look for it."""
        experiment = self._books.active_as(event.experiment)
        if experiment is not None and experiment.publishing:
            experiment.result = event.model
            experiment.life.step("finish")
            self.conclude(experiment, ExperimentState.FINISHED, "every round is done")

    def conclude(self, experiment: Experiment, ending: Ending, reason: str) -> None:
        """Close an experiment, and let the next one have its turn."""
        experiment.reason = reason
        if self._books.active is experiment:
            self._books.active = None
            self._books.workers.let_in()
            for worker in list(self._books.workers):
                self._books.cancel(worker, reason)
        self._books.discard(experiment.name, experiment.close())
        self._books.do(
            do.Conclude(
                cause=self._books.cause,
                experiment=experiment.name,
                ending=ending,
                reason=reason,
                asked_wrongly=experiment.asked_wrongly,
                model=experiment.result,
            )
        )
        self.activate_next()
