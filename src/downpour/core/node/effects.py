"""Which commands wait for each other, and which event answers each.

`Effects` starts each command in its lane, in the manager (`cluster/manager/command_runner.py`) and
in the simulator (`downpour_lab/simulated/command_runner.py`) alike. The manager's lanes are
threads, and the simulator's lanes are queues in virtual time. So if commands can overtake each
other in the manager, they can do so in the simulator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Generic, ParamSpec, assert_never

from downpour.base.states import Evaluation, FailureKind
from downpour.base.values import AttemptId, PublishedFile, TrialSums, Update
from downpour.core.scheduler import commands as do
from downpour.core.scheduler import events as on
from downpour.core.scheduler import facts

P = ParamSpec("P")


class Effects(ABC, Generic[P]):
    """A manager's actions besides decisions.

    `P` are the arguments that an effect takes besides its command. An effect that has ended when it
    returns takes none; any other takes a function to call at its end.
    """

    def start(self, command: do.Command) -> None:  # noqa: C901, PLR0912 - one arm a command
        """Begin to carry out a command."""
        match command:
            case do.Prepare():
                self._alone(command.experiment, partial(self._prepare, command))
            case do.Assign():
                self._in_turn(command.assigned.worker, partial(self._assign, command))
            case do.Cancel():
                self._in_turn(command.worker, partial(self._cancel, command))
            case do.HandOver():
                self._in_turn(command.worker, partial(self._hand_over, command))
            case do.Gather():
                self._work(command.experiment, partial(self._gather, command))
            case do.Aggregate():
                self._work(command.experiment, partial(self._aggregate, command))
            case do.Evaluate():
                self._beside(command.experiment, partial(self._evaluate, command))
            case do.Publish():
                self._work(command.experiment, partial(self._publish, command))
            case do.Adopt():
                self._work(command.experiment, partial(self._adopt, command))
            case do.Discard():
                self._clean(command.experiment, partial(self._discard, command))
            case do.Conclude():
                self._clean(command.experiment, partial(self._conclude, command))
            case do.Dismiss():
                # This doesn't wait behind the worker's other calls. Closing the worker's client
                # ends the call in flight, which would otherwise occupy a thread until its deadline.
                self._dismiss(command.worker)
            case _:
                assert_never(command)

    # Lanes

    @abstractmethod
    def _alone(self, experiment: str, job: Callable[P, None]) -> None:
        """Begin at once, because preparing may hang in a download or in a user's code."""

    @abstractmethod
    def _in_turn(self, worker: str, job: Callable[P, None]) -> None:
        """Begin after the earlier calls to this worker; calls to others do not wait."""

    @abstractmethod
    def _work(self, experiment: str, job: Callable[P, None]) -> None:
        """Begin after the earlier work on parameters."""

    @abstractmethod
    def _beside(self, experiment: str, job: Callable[P, None]) -> None:
        """Begin after the earlier evaluations, beside other work.

        Evaluation of a model runs while workers train the next round, whose aggregation must not
        wait for it.
        """

    @abstractmethod
    def _clean(self, experiment: str, job: Callable[P, None]) -> None:
        """Begin after the earlier work on parameters; a failure only leaves files behind."""

    # Effects

    @abstractmethod
    def _prepare(self, command: do.Prepare, /, *args: P.args, **kwargs: P.kwargs) -> None: ...

    @abstractmethod
    def _assign(self, command: do.Assign, /, *args: P.args, **kwargs: P.kwargs) -> None: ...

    @abstractmethod
    def _cancel(self, command: do.Cancel, /, *args: P.args, **kwargs: P.kwargs) -> None: ...

    @abstractmethod
    def _hand_over(self, command: do.HandOver, /, *args: P.args, **kwargs: P.kwargs) -> None: ...

    @abstractmethod
    def _gather(self, command: do.Gather, /, *args: P.args, **kwargs: P.kwargs) -> None: ...

    @abstractmethod
    def _aggregate(self, command: do.Aggregate, /, *args: P.args, **kwargs: P.kwargs) -> None: ...

    @abstractmethod
    def _evaluate(self, command: do.Evaluate, /, *args: P.args, **kwargs: P.kwargs) -> None: ...

    @abstractmethod
    def _publish(self, command: do.Publish, /, *args: P.args, **kwargs: P.kwargs) -> None: ...

    @abstractmethod
    def _adopt(self, command: do.Adopt, /, *args: P.args, **kwargs: P.kwargs) -> None: ...

    @abstractmethod
    def _discard(self, command: do.Discard, /, *args: P.args, **kwargs: P.kwargs) -> None: ...

    @abstractmethod
    def _conclude(self, command: do.Conclude, /, *args: P.args, **kwargs: P.kwargs) -> None: ...

    @abstractmethod
    def _dismiss(self, worker: str, /) -> None:
        """Forget a worker."""


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
