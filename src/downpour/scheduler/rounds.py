"""When a round begins, is over, and what its model version turns out to be."""

from __future__ import annotations

from downpour.scheduler import commands as do
from downpour.scheduler import events as on
from downpour.scheduler.books import Books, Found
from downpour.scheduler.contributions import Contributions
from downpour.scheduler.directing import Directing
from downpour.scheduler.experiment import Experiment
from downpour.scheduler.round import Round, files_of
from downpour.scheduler.turns import Turns
from downpour.values import ExperimentState, FailureKind, PublishedFile


class Rounds:
    """The rounds of the active experiment, one after the other."""

    def __init__(
        self, books: Books, turns: Turns, contributions: Contributions, directing: Directing
    ) -> None:
        self._books = books
        self._turns = turns
        self._contributions = contributions
        self._directing = directing

    def prepared(self, event: on.Prepared) -> None:
        """Begin the first round, or go on where an earlier manager ended."""
        experiment = self._books.active_as(event.experiment)
        if experiment is None or (
            experiment.life.state is not ExperimentState.PREPARING and experiment.ready
        ):
            return
        made, asked = len(event.shard_samples), experiment.spec.shards
        if made != asked:
            self._turns.fail(
                experiment, f"the dataset was cut into {made} shards instead of {asked}"
            )
        elif experiment.ready:
            self._start(experiment, event)
        elif (event.dataset, event.shard_samples) != (experiment.dataset, experiment.shard_samples):
            self._turns.fail(
                experiment, "the dataset is not the one that this experiment began with"
            )
        else:
            self._go_on(experiment)

    def _start(self, experiment: Experiment, event: on.Prepared) -> None:
        experiment.life.step("start")
        experiment.dataset = event.dataset
        experiment.shard_samples = event.shard_samples
        experiment.models.append(event.model)
        experiment.start_round()

    def _go_on(self, experiment: Experiment) -> None:
        """Ask once more for what was outstanding when the manager before this one ended."""
        experiment.ready = True
        for number, model in experiment.evaluating.items():
            self._evaluate(experiment, number, model)
        if experiment.round is not None:
            self._adopt(experiment, experiment.round)
            self._contributions.aggregate_if_complete(experiment.round)
        elif experiment.may_publish:
            self._turns.publish(experiment)

    def _adopt(self, experiment: Experiment, current: Round) -> None:
        """Ask for updates whose worker may not live to report them."""
        if holders := current.holders():
            self._books.do(
                do.Adopt(cause=self._books.cause, experiment=experiment.name, attempts=holders)
            )

    def aggregated(self, event: on.Aggregated) -> None:
        """Close the round, and begin the next one."""
        experiment = self._books.active_as(event.experiment)
        current = experiment.aggregating(event.round) if experiment else None
        if experiment is None or current is None:
            return
        self._directing.learn(current)
        spent = experiment.close_round(current, event.model)
        if experiment.may_start_round:
            experiment.start_round()
            self._directing.decide()  # before all else: nobody should wait for files to be removed
        if event.round in experiment.evaluating:
            self._evaluate(experiment, event.round, event.model)
        self._books.discard(experiment.name, spent)
        self._turns.publish_if_done(experiment)

    def _evaluate(self, experiment: Experiment, number: int, model: PublishedFile) -> None:
        self._books.do(
            do.Evaluate(
                cause=self._books.cause,
                experiment=experiment.name,
                round=number,
                model=model,
            )
        )

    def refused(self, event: on.UpdatesRefused) -> None:
        """Have the shards whose updates cannot be used trained again."""
        experiment = self._books.active_as(event.experiment)
        current = experiment.aggregating(event.round) if experiment else None
        if experiment is None or current is None:
            return
        current.aggregating = False
        for shard, reason in event.reasons:
            if experiment.life.state is ExperimentState.RUNNING:
                self._refuse(Found(experiment, current, current.tasks[shard]), reason)

    def _refuse(self, found: Found, reason: str) -> None:
        task = found.task
        worker, attempt, update = task.worker, task.attempt, task.update
        if worker is None or attempt is None or update is None:
            return
        self._contributions.refuse(found.round, task.shard, reason)
        self._books.do(
            do.GiveUp(
                cause=self._books.cause,
                worker=worker,
                attempt=attempt,
                failure=FailureKind.STORE,
                reason=reason,
            )
        )
        self._books.discard(found.experiment.name, files_of(update))
        self._contributions.fail_if_hopeless(found, reason)

    def evaluated(self, event: on.Evaluated) -> None:
        """Take note of how good a model version is."""
        experiment = self._books.active_as(event.experiment)
        if experiment is None or event.round not in experiment.evaluating:
            return
        spent = experiment.take_evaluation(event.round, event.evaluation)
        self._books.discard(experiment.name, spent)
        if experiment.round is None and experiment.may_start_round:
            experiment.start_round()
        self._turns.publish_if_done(experiment)
