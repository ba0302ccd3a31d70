"""The one thread that owns the scheduler core.

RPC threads and effects only put events on a queue; this thread hands them to a `ManagerNode`, makes
durable what follows (once for all that were waiting), and only then passes the commands on, as the
node's module says. Hence no locks in the core. `post` returns a future that is done when what the
event led to is kept: who acknowledges an update waits for it. `ask` reads the core's state in the
same thread. After `stop` both are refused: a caller would wait for a thread that has ended.

It is fail-stop. What is wrong is refused before it becomes an event, for no event can be made of
it. So any exception leaves a core of which nothing is known, and ends the manager: nothing more is
acknowledged or done, and the next manager has what was. Only a question may fail, for it changes
nothing: its error is its asker's.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Condition, Thread
from threading import Event as Ending
from typing import Any, Protocol, TypeVar

from downpour.errors import (
    DownpourError,
    FailStop,
    Refused,
    SharedDirectoryError,
    StoreError,
)
from downpour.node.manager import (
    BATCH_MAX_EVENTS,
    Asked,
    ManagerContext,
    ManagerNode,
    Posted,
    Step,
)
from downpour.scheduler import Output, Scheduler
from downpour.scheduler.commands import Command
from downpour.scheduler.events import Event, HeartbeatReceived, Tick
from downpour.store.retry import RetryPolicy

log = logging.getLogger(__name__)

T = TypeVar("T")


class CommandSink(ManagerContext, Protocol):
    """Keeps what happened, and carries the commands out; long effects run elsewhere."""

    def commit(self) -> None:
        """Make durable what was gathered; raises SharedDirectoryError where it cannot be now."""
        ...

    def carry_out(self, commands: Sequence[Command]) -> None:
        """Start what the commands ask for."""
        ...


_Waiting = Future[Any]
_Item = Posted[_Waiting] | Asked[_Waiting]
_Step = Step[_Waiting]


class Driver:
    """Runs the core in a thread of its own, from `start` to `stop`.

    Args:
        scheduler: the core; time goes on where it stands.
        sink: keeps and carries out.
        clock: seconds, from any beginning.
        patience_seconds: how long the directory may refuse to keep anything.
        on_death: is told why it has ended by itself: StoreError where nothing more can be kept or
            another one manages, else FailStop. No event is taken any more then.
        check_office: asked before anything is done; raises StoreError where another one manages.
        node_class: makes what decides, for tests to plant defects in.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        sink: CommandSink,
        clock: Callable[[], float] = time.monotonic,
        *,
        patience_seconds: float = 60.0,
        on_death: Callable[[DownpourError], None] = lambda _: None,
        check_leader: Callable[[], None] = lambda: None,
        node_class: type[ManagerNode[_Waiting]] = ManagerNode,
    ) -> None:
        self._on_death = on_death
        self._check_leader = check_leader
        self._ending = Ending()
        self._retry_policy = RetryPolicy(seconds=patience_seconds, sleep=self._ending.wait)
        self._scheduler = scheduler
        self._node = node_class(scheduler, sink)
        self._sink = sink
        self._clock = clock
        self._queue: SimpleQueue[_Item | None] = SimpleQueue()
        self._taken: list[_Item] = []
        self._began_at = clock() - scheduler.state.now_seconds
        self._changed = Condition()
        self._change = 1
        self._beaten = False
        self._waits_ended = False
        self._stopped = False
        self._thread = Thread(target=self._run, name="scheduler", daemon=True)

    @property
    def now_seconds(self) -> float:
        """Experiment time: seconds that this manager and those before it have been at work."""
        return self._clock() - self._began_at

    @property
    def change(self) -> int:
        """Grows with every event that could interest somebody who watches."""
        return self._change

    def start(self, first: Sequence[Command] = ()) -> None:
        """Begin to take events; experiment time goes on from where the core stands.

        What was to be done when an earlier manager ended is begun `first`.
        """
        self._began_at = self._clock() - self._scheduler.state.now_seconds
        self._first = list(first)
        self._thread.start()

    def end_waits(self) -> None:
        """Let nobody wait for a change any more, now or later: the end is near."""
        with self._changed:
            self._waits_ended = True
            self._changed.notify_all()

    def stop(self) -> None:
        """Take no more events; returns when the thread has ended."""
        self.end_waits()
        self._ending.set()
        self._queue.put(None)
        self._thread.join()
        self._stopped = True
        self._refuse_the_rest()

    def post(self, event: Event) -> Future[Output]:
        """Hand an event to the core; the future is done when it has been taken in.

        The future raises Refused, as busy, where the driver has stopped: what became of the event
        is then unknown.
        """
        done = Future[Output]()
        self._put(Posted(event, done))
        return done

    def ask(self, question: Callable[[Scheduler], T]) -> T:
        """Read the core's state between two events; raises what `question` does.

        It must change nothing. After the end it is refused, as busy.
        """
        done = Future[T]()
        self._put(Asked(question, done))
        return done.result()

    def wait_for_change(self, after: int, timeout_seconds: float) -> bool:
        """Wait until something has changed after change number `after`; says whether it has."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._waits_ended or self._change > after, timeout_seconds
            )
            return self._change > after

    def _put(self, item: _Item) -> None:
        self._queue.put(item)
        if self._stopped:  # asked after putting: whichever of the two comes later sees the other
            self._refuse_the_rest()

    def _refuse_the_rest(self) -> None:
        with suppress(Empty):
            while True:
                item = self._queue.get_nowait()
                if item is not None and item.asker is not None:
                    item.asker.set_exception(_stopping())

    def _run(self) -> None:
        try:
            self._sink.carry_out(self._first)
            self._serve()
        except BaseException as error:  # noqa: BLE001 - whatever it was, nothing counts after it
            self._end_because_of(error)

    def _serve(self) -> None:
        self._node.start(self.now_seconds)
        while True:
            items = self._next_items(max(0.0, self._node.wake_at_seconds - self.now_seconds))
            self._take([item for item in items if item is not None])
            if None in items:
                return

    def _end_because_of(self, error: BaseException) -> None:
        """Answer everybody who waits that this manager is stopping, and say why."""
        self._stopped = True
        for item in self._taken:
            if item.asker is not None and not item.asker.done():
                item.asker.set_exception(_stopping())
        self._refuse_the_rest()
        self.end_waits()
        if isinstance(error, StoreError):
            self._on_death(error)
            return
        log.info("the manager ends", exc_info=error)
        self._on_death(FailStop(_described(error)))

    def _next_items(self, timeout_seconds: float) -> list[_Item | None]:
        """Wait for something to do and return it, with what waits behind it; ends with a None."""
        items: list[_Item | None] = []
        with suppress(Empty):
            items.append(self._queue.get(timeout=timeout_seconds))
            while items[-1] is not None and len(items) < BATCH_MAX_EVENTS:
                items.append(self._queue.get_nowait())
        return items

    def _take(self, items: list[_Item]) -> None:
        """Have some items taken in and make durable what follows, then act on it and answer.

        Whatever it raises, nobody has been answered whose event may not be kept.
        """
        self._taken = items
        ready = self._node.take(items, self.now_seconds)
        if ready.stood_still_seconds:
            log.warning("the manager stood still for %.0f s", ready.stood_still_seconds)
        self._commit()
        if ready.must_lead:
            self._check_leader()
        for step in ready.steps:
            self._act(step)
        self._taken = []

    def _commit(self) -> None:
        """Insist for a while: a disk may get room again, and a directory come back."""
        try:
            self._sink.commit()
        except SharedDirectoryError as error:
            log.warning("nothing can be kept, will go on trying: %s", error)
            self._retry_policy.call_through_outage(self._sink.commit)
            log.warning("what happened is kept again")

    def _act(self, step: _Step) -> None:
        if step.event is not None:
            self._sink.carry_out(step.commands)
        if step.asker is not None:
            self._answer(step, step.asker)
        if step.event is not None:
            self._announce(step)

    def _answer(self, step: _Step, asker: _Waiting) -> None:
        if step.error is not None:
            asker.set_exception(step.error)
        else:
            asker.set_result(step.answer)

    def _announce(self, step: _Step) -> None:
        """Let those who watch look again; heartbeats alone wait for the next tick."""
        quiet = not step.commands and not step.facts
        if quiet and isinstance(step.event, HeartbeatReceived):
            self._beaten = True
            return
        if quiet and isinstance(step.event, Tick) and not self._beaten:
            return
        self._beaten = False
        with self._changed:
            self._change += 1
            self._changed.notify_all()


def _stopping() -> Refused:
    return Refused("manager", "is stopping", busy=True)


def _described(error: BaseException) -> str:
    """Say in one line what was raised, and where."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    frames = traceback.extract_tb(error.__traceback__)
    return (
        f"{text} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else text
    )
