"""The decisions that surround the scheduler in a manager.

A driver gathers events and questions and passes them to `ManagerNode.take`. The node returns a
`Ready`, which lists the driver's duties. In this order, the driver must:

1. make durable what the node has gathered, or end;
2. if `must_lead`, check that no other manager has taken over, or end;
3. for each of the `steps`, in order, carry out its commands, then answer the asker;
4. call again when something arrives, or at `wake_at_seconds`.

So a crash can't undo an answer or an action. A `ManagerNode` holds no clock, thread, socket or
file: `cluster/manager/driver.py` drives it with a thread.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from downpour.base.values import AttemptId, Progress
from downpour.core.scheduler import Entry, Output, Scheduler
from downpour.core.scheduler import events as on

BATCH_MAX_EVENTS = 256
"""The most events that share one sync of the journal: the first of them waits for the last."""

TICK_SECONDS = 0.5
"""The time between two checks for silent workers and stalled attempts; both limits are seconds."""

STOOD_STILL_SECONDS = 2.0
"""A tick this late means that the manager itself stood still. Workers send a heartbeat at least
once a second, so after the same time again, the manager has heard from all live workers."""

LOOK_SECONDS = 1.0
"""How often a manager with nothing to do checks that no other manager has taken over."""

T = TypeVar("T")

Question = Callable[[Scheduler], Any]


@dataclass(frozen=True, slots=True)
class Posted(Generic[T]):
    """An event, and any asker that waits until the manager has journaled it and acted on it."""

    event: on.Event
    asker: T | None = None


@dataclass(frozen=True, slots=True)
class Asked(Generic[T]):
    """A question about the core's state, which changes nothing, and its asker."""

    question: Question
    asker: T


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(Generic[T]):
    """The results of one event, or of one question.

    The `asker` gets the `answer`: the output of the event, or the result of the question. If a
    question fails, the asker gets its `error` instead.
    """

    asker: T | None
    event: on.Event | None = None
    output: Output = field(default_factory=Output)
    kept: Sequence[Entry] = ()
    answer: Any = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready(Generic[T]):
    """A driver's duties; see the module. `stood_still_seconds` is 0 if the manager did not."""

    steps: Sequence[Step[T]]
    must_lead: bool
    wake_at_seconds: float
    stood_still_seconds: float = 0.0


class ManagerContext(Protocol):
    """The driver's services for a node that takes in events."""

    def forecasts(self, at_seconds: float) -> on.Forecasts | None:
        """Return new forecasts; None if no report has come since, or no policy uses forecasts."""

    def keep(self, core: Scheduler, event: on.Event, output: Output) -> Sequence[Entry]:
        """Gather and return the entries of an event and its output that the journal must hold.

        The driver writes them when it commits.
        """


class ManagerNode(Generic[T]):
    """Takes in events and questions, one at a time; `T` is the driver's type for an asker."""

    def __init__(self, core: Scheduler, context: ManagerContext) -> None:
        self._core = core
        self._context = context
        self.wake_at_seconds = core.state.now_seconds

    def start(self, now_seconds: float) -> None:
        """Begin to tick."""
        self.wake_at_seconds = now_seconds + TICK_SECONDS

    def take(self, arrived: Sequence[Posted[T] | Asked[T]], now_seconds: float) -> Ready[T]:
        """Take in the arrived events, in order, and a tick if one is due.

        After an exception, the core may have handled half an event, so the driver must end.
        """
        # We compute this before the events, so that a manager that wakes up with a full queue
        # notices that it stood still.
        late = now_seconds - self.wake_at_seconds
        steps = [step for one in arrived for step in self._taken(one)]
        if late >= 0:
            steps += self._passed(late, now_seconds)
        return Ready(
            steps=steps,
            # Journaled entries count as well as commands. An entry after the successor's first line
            # is void, and the manager must not acknowledge it.
            must_lead=any(step.output.commands or step.kept for step in steps),
            wake_at_seconds=self.wake_at_seconds,
            stood_still_seconds=late if late > STOOD_STILL_SECONDS else 0.0,
        )

    def _passed(self, late_seconds: float, now_seconds: float) -> Iterator[Step[T]]:
        """Let the core check its timeouts.

        A manager that stood still itself (a stalled file system, a suspended process) did not hear
        its workers. It must not count them as lost, so it first waits for their next heartbeats.
        """
        # A tick now would find that all workers were silent while the manager stood still.
        if late_seconds > STOOD_STILL_SECONDS:
            self.wake_at_seconds = now_seconds + STOOD_STILL_SECONDS
            return
        self.wake_at_seconds = now_seconds + TICK_SECONDS
        yield from self._taken(Posted(on.Tick(at_seconds=now_seconds)))

    def _taken(self, one: Posted[T] | Asked[T]) -> Iterator[Step[T]]:
        if isinstance(one, Asked):
            try:
                answered = Step(asker=one.asker, answer=one.question(self._core))
            except Exception as error:  # noqa: BLE001 - it changes nothing: only its asker fails
                answered = Step(asker=one.asker, error=error)
            yield answered
            return
        # Forecasts come before a tick and before a round begins, because the policies decide then.
        if isinstance(one.event, on.Tick | on.Aggregated):
            forecasts = self._context.forecasts(one.event.at_seconds)
            if forecasts is not None:
                yield self._handled(Posted(forecasts))
        yield self._handled(one)

    def _handled(self, posted: Posted[T]) -> Step[T]:
        output = self._core.handle(posted.event)
        kept = self._context.keep(self._core, posted.event, output)
        return Step(asker=posted.asker, event=posted.event, output=output, kept=kept, answer=output)


class HeartbeatAnswer(NamedTuple):
    """Whether the worker is known, its unwanted attempts, and the least time to its next beat."""

    known: bool
    unwanted: tuple[AttemptId, ...]
    interval_seconds: float


def heartbeat_reply(
    core: Scheduler, worker: str, running: Sequence[Progress], *, can_call: bool
) -> HeartbeatAnswer:
    """Answer a heartbeat.

    A worker that the manager cannot call counts as unknown, so that it registers again. The core
    may still know it from the journal.
    """
    there = core.state.workers.get(worker)
    return HeartbeatAnswer(
        known=there is not None and not there.is_awaited and can_call,
        unwanted=tuple(core.unwanted(worker, running)),
        interval_seconds=there.interval_seconds if there is not None else 0.0,
    )
