"""The one thread that owns the scheduler core.

RPC threads and effects only put events on a queue; this thread takes them off one by one, hands
them to the core, puts on record what follows, and passes the commands on. Hence no locks in the
core. `post` returns a future that is done when the event has been taken in: who acknowledges an
update waits for it. `ask` reads the core's state in the same thread. After `stop` both are refused,
so that nobody waits for a thread that has ended.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Condition, Thread
from typing import Any, Protocol, TypeVar

from downpour.errors import Refused
from downpour.scheduler import Scheduler
from downpour.scheduler.commands import Command
from downpour.scheduler.events import Event, Tick

log = logging.getLogger(__name__)

T = TypeVar("T")

TICK_SECONDS = 0.5
HELD_UP_SECONDS = 2.0
"""A tick this late means that the manager itself stood still."""


class CommandSink(Protocol):
    """Whoever carries the commands out; must return at once, long effects run elsewhere."""

    def carry_out(self, event: Event, commands: list[Command]) -> None:
        """Put on record and start what the commands of one event ask for."""
        ...


@dataclass(slots=True)
class _Posted:
    event: Event
    done: Future[list[Command]]


@dataclass(slots=True)
class _Asked:
    question: Callable[[Scheduler], Any]
    done: Future[Any]


class Driver:
    """Runs the core in a thread of its own, from `start` to `stop`."""

    def __init__(
        self,
        scheduler: Scheduler,
        sink: CommandSink,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scheduler = scheduler
        self._sink = sink
        self._clock = clock
        self._queue: SimpleQueue[_Posted | _Asked | None] = SimpleQueue()
        self._began_at = clock()
        self._changed = Condition()
        self._change = 1
        self._waits_ended = False
        self._stopped = False
        self._thread = Thread(target=self._run, name="scheduler", daemon=True)

    @property
    def now_seconds(self) -> float:
        """Experiment time: seconds since this manager began."""
        return self._clock() - self._began_at

    @property
    def change(self) -> int:
        """Grows with every event that could interest somebody who watches."""
        return self._change

    def start(self) -> None:
        """Begin to take events."""
        self._thread.start()

    def end_waits(self) -> None:
        """Let nobody wait for a change any more, now or later: the end is near."""
        with self._changed:
            self._waits_ended = True
            self._changed.notify_all()

    def stop(self) -> None:
        """Take no more events; returns when the thread has ended."""
        self.end_waits()
        self._queue.put(None)
        self._thread.join()
        self._stopped = True
        self._refuse_the_rest()

    def post(self, event: Event) -> Future[list[Command]]:
        """Hand an event to the core; the future is done when it has been taken in.

        The future raises what went wrong, or Refused where the driver has stopped.
        """
        posted = _Posted(event, Future())
        self._put(posted)
        return posted.done

    def ask(self, question: Callable[[Scheduler], T]) -> T:
        """Read the core's state between two events; raises Refused after the end."""
        asked = _Asked(question, Future())
        self._put(asked)
        answer: T = asked.done.result()
        return answer

    def wait_for_change(self, after: int, timeout_seconds: float) -> bool:
        """Wait until something has changed after change number `after`; says whether it has."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._waits_ended or self._change > after, timeout_seconds
            )
            return self._change > after

    def _put(self, item: _Posted | _Asked) -> None:
        self._queue.put(item)
        if self._stopped:  # asked after putting: whichever of the two comes later sees the other
            self._refuse_the_rest()

    def _refuse_the_rest(self) -> None:
        with suppress(Empty):
            while True:
                item = self._queue.get_nowait()
                if item is not None:
                    item.done.set_exception(Refused("manager", "is stopping", busy=True))

    def _run(self) -> None:
        tick_at = TICK_SECONDS
        while True:
            try:
                item = self._queue.get(timeout=max(0.0, tick_at - self.now_seconds))
            except Empty:
                item = None
            else:
                if item is None:
                    return
                self._take(item)
            tick_at = self._tick(tick_at)

    def _tick(self, due_seconds: float) -> float:
        """Tell the core the time when it is due; returns when to do so next.

        Who stood still itself (a stalled file system, a suspended process) must not blame workers
        for their silence: they get some time to be heard before the core judges.
        """
        late = self.now_seconds - due_seconds
        if late < 0:
            return due_seconds
        if late > HELD_UP_SECONDS:
            log.warning("the manager stood still for %.0f s", late)
            return self.now_seconds + HELD_UP_SECONDS
        self._take(_Posted(Tick(at_seconds=self.now_seconds), Future()))
        return self.now_seconds + TICK_SECONDS

    def _take(self, item: _Posted | _Asked) -> None:
        """Handle one item; its error goes to whoever waits for it and never ends the thread."""
        try:
            if isinstance(item, _Asked):
                result = item.question(self._scheduler)
            else:
                result = self._scheduler.handle(item.event)
                self._sink.carry_out(item.event, result)
        except Exception as error:
            log.exception("the scheduler could not take %s", item)
            item.done.set_exception(error)
        else:
            item.done.set_result(result)
            if isinstance(item, _Posted):
                self._announce(item.event, result)

    def _announce(self, event: Event, commands: list[Command]) -> None:
        if isinstance(event, Tick) and not commands:
            return
        with self._changed:
            self._change += 1
            self._changed.notify_all()
