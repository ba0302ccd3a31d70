"""The events that answer commands: each carries a command's result."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from downpour.base.evaluations import Evaluation
from downpour.base.states import FailureKind
from downpour.base.values import AttemptId, PublishedFile, TrialSums, Update
from downpour.core.scheduler import commands as do
from downpour.core.scheduler import events as on
from downpour.core.scheduler import facts


class Answers:
    """Makes and posts these events for both command runners.

    Args:
        post: takes an event.
        clock: experiment time, in seconds.
    """

    def __init__(self, post: Callable[[on.Event], object], clock: Callable[[], float]) -> None:
        self._post = post
        self._clock = clock

    def prepared(
        self,
        command: do.Prepare,
        *,
        dataset: str,
        shard_samples: tuple[int, ...],
        model: PublishedFile,
        outer: PublishedFile | None,
        frozen: PublishedFile | None,
        trial: TrialSums | None = None,
        handed_on: on.HandedOn = on.NOTHING_HANDED_ON,
    ) -> None:
        """Post that an experiment can begin or continue."""
        self._post(
            on.Prepared(
                at_seconds=self._clock(),
                experiment=command.experiment,
                dataset=dataset,
                shard_samples=shard_samples,
                model=model,
                frozen=frozen,
                trial=trial,
                outer=outer,
                handed_on=handed_on,
            )
        )

    def not_registered(self, worker: str) -> None:
        """Post that the manager dismissed a worker while a call to it waited behind others."""
        self._post(
            on.WorkerLeft(at_seconds=self._clock(), worker=worker, reason="it is not registered")
        )

    def call_failed(self, worker: str, why: object) -> None:
        """Post that a worker is dead because a call to it failed."""
        self.lost(worker, f"the call failed: {why}")

    def lost(self, worker: str, reason: str) -> None:
        """Post that a worker is dead."""
        self._post(on.WorkerLost(at_seconds=self._clock(), worker=worker, reason=reason))

    def not_assigned(self, assigned: facts.Assigned, reason: str) -> None:
        """Post that a worker could not receive its task."""
        self._post(
            on.AttemptFailed(
                at_seconds=self._clock(),
                worker=assigned.worker,
                attempt=assigned.attempt,
                failure=FailureKind.LOST,
                reason=reason,
            )
        )

    def adopted(self, worker: str, attempt: AttemptId, update: Update) -> None:
        """Post that a worker published an update without reporting it."""
        self._post(
            on.UpdatePublished(
                at_seconds=self._clock(), worker=worker, attempt=attempt, update=update
            )
        )

    def aggregated(
        self,
        command: do.Aggregate,
        model: PublishedFile,
        outer: PublishedFile | None,
        own: tuple[PublishedFile, ...] = (),
    ) -> None:
        """Post that updates became a model version; shards continue from their `own` parameters."""
        self._post(
            on.Aggregated(
                at_seconds=self._clock(),
                experiment=command.experiment,
                round=command.round,
                model=model,
                outer=outer,
                parts=command.parts,
                own=own,
            )
        )

    def refused(self, command: do.Aggregate, reasons: Mapping[int, str]) -> None:
        """Post that the manager cannot use some updates; `reasons` are by shard."""
        self._post(
            on.AggregationFailed(
                at_seconds=self._clock(),
                experiment=command.experiment,
                round=command.round,
                reasons=tuple(sorted(reasons.items())),
            )
        )

    def evaluated(self, command: do.Evaluate, evaluation: Evaluation) -> None:
        """Post the evaluation of a model version."""
        self._post(
            on.Evaluated(
                at_seconds=self._clock(),
                experiment=command.experiment,
                round=command.round,
                evaluation=evaluation,
                part=command.part,
            )
        )

    def published(self, command: do.Publish, model: PublishedFile) -> None:
        """Post that an experiment has its result."""
        self._post(
            on.ModelPublished(at_seconds=self._clock(), experiment=command.experiment, model=model)
        )

    def failed(self, experiment: str, reason: str, *, asked_wrongly: bool = False) -> None:
        """Post that a command failed, and that its experiment therefore fails."""
        self._post(
            on.EffectFailed(
                at_seconds=self._clock(),
                experiment=experiment,
                reason=reason,
                asked_wrongly=asked_wrongly,
            )
        )
