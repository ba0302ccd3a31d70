"""The one thread that owns the scheduler core.

RPC threads and effects only put events on a queue; this thread takes them off one by one, hands
them to the core, puts on record what follows, and passes the commands on. Hence no locks in the
core. `post` returns a future that is done when the event has been taken in: who acknowledges an
update waits for it. `ask` reads the core's state in the same thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Condition, Thread
from typing import Any, Protocol, TypeVar

from downpour.scheduler import Scheduler
from downpour.scheduler.commands import Command
from downpour.scheduler.events import Event, Tick

log = logging.getLogger(__name__)

T = TypeVar("T")

TICK_SECONDS = 0.5


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

    def __init__(self, scheduler: Scheduler, sink: CommandSink) -> None:
        self._scheduler = scheduler
        self._sink = sink
        self._queue: SimpleQueue[_Posted | _Asked | None] = SimpleQueue()
        self._began_at = time.monotonic()
        self._changed = Condition()
        self._change = 1
        self._thread = Thread(target=self._run, name="scheduler", daemon=True)

    @property
    def now_seconds(self) -> float:
        """Experiment time: seconds since this manager began."""
        return time.monotonic() - self._began_at

    @property
    def change(self) -> int:
        """Grows with every event that could interest somebody who watches."""
        return self._change

    def start(self) -> None:
        """Begin to take events."""
        self._thread.start()

    def stop(self) -> None:
        """Take no more events; returns when the thread has ended."""
        self._queue.put(None)
        self._thread.join()
        with self._changed:
            self._changed.notify_all()

    def post(self, event: Event) -> Future[list[Command]]:
        """Hand an event to the core; the future is done when it has been taken in."""
        posted = _Posted(event, Future())
        self._queue.put(posted)
        return posted.done

    def ask(self, question: Callable[[Scheduler], T]) -> T:
        """Read the core's state between two events."""
        asked = _Asked(question, Future())
        self._queue.put(asked)
        answer: T = asked.done.result()
        return answer

    def wait_for_change(self, after: int, timeout_seconds: float) -> int:
        """Wait until something has changed after change number `after`; returns the newest."""
        with self._changed:
            self._changed.wait_for(lambda: self._change > after, timeout_seconds)
            return self._change

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
            if self.now_seconds >= tick_at:
                self._take(_Posted(Tick(at_seconds=self.now_seconds), Future()))
                tick_at = self.now_seconds + TICK_SECONDS

    def _take(self, item: _Posted | _Asked) -> None:
        """Handle one item; its error goes to whoever waits for it and never ends the thread."""
        try:
            if isinstance(item, _Asked):
                item.done.set_result(item.question(self._scheduler))
            else:
                commands = self._scheduler.handle(item.event)
                self._sink.carry_out(item.event, commands)
                item.done.set_result(commands)
                self._announce(item.event, commands)
        except Exception as error:
            log.exception("the scheduler could not take %s", item)
            item.done.set_exception(error)

    def _announce(self, event: Event, commands: list[Command]) -> None:
        if isinstance(event, Tick) and not commands:
            return
        with self._changed:
            self._change += 1
            self._changed.notify_all()
