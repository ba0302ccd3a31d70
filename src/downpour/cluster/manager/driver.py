"""The one thread that owns the scheduler core.

RPC threads and command threads only put events on a queue. This thread hands them to a
`ManagerNode`, makes the consequences durable (once for all waiting events), and only then passes
the commands on, as the node's module says. So the core needs no locks. After `stop`, the driver
refuses both events and questions, because a caller would wait for a thread that has ended.

The driver is fail-stop: any exception here leaves the core in an unknown state, and ends the
manager. Only a question may fail, because it changes nothing; its caller gets the error.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import KW_ONLY, InitVar, dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Condition
from typing import Any, TypeVar

from downpour.base.errors import DownpourError, FailStop, Refused, SharedDirectoryError, StoreError
from downpour.cluster.manager import command_runner, observations, status, takeover, workspace
from downpour.cluster.manager.status import Roster
from downpour.core.node.journal import CHECKPOINT_ROUNDS, Journaling, JournalWriter
from downpour.core.node.manager import BATCH_MAX_EVENTS, Asked, ManagerNode, Posted, Step
from downpour.core.scheduler import Entry, Output, Scheduler
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.files.store.publish import RetryPolicy
from downpour.host.process import THREADS, Threads
from downpour.predictor.forecaster import Forecaster

log = logging.getLogger(__name__)

T = TypeVar("T")


_Waiting = Future[Any]
_Item = Posted[_Waiting] | Asked[_Waiting]
_Step = Step[_Waiting]


@dataclass(eq=False)
class Driver:
    """Runs the core in a separate thread, from `start` to `stop`.

    Args:
        scheduler: the core; experiment time continues from its state.
        threads: the driver's thread, its queue, and its clock.
        patience_seconds: how long the directory may refuse writes before the driver ends.
        on_death: called with the reason if the driver ends on its own: StoreError if it cannot
            persist anything or another manager leads, else FailStop.
        check_leader: called before commands that need the lead; raises StoreError without it.
        node_class: makes the decisions; tests plant defects in it.
    """

    scheduler: Scheduler
    threads: Threads = THREADS
    _: KW_ONLY
    patience_seconds: float = 60.0
    on_death: Callable[[DownpourError], None] = lambda _: None
    check_leader: Callable[[], None] = lambda: None
    node_class: type[ManagerNode[_Waiting]] = ManagerNode

    def __post_init__(self) -> None:
        """Take posts, but no event before `start`."""
        self._ending = self.threads.flag()
        self._retry_policy = RetryPolicy(seconds=self.patience_seconds, sleep=self._ending.wait)
        self._queue: SimpleQueue[_Item | None] = self.threads.queue()
        self._taken: list[_Item] = []
        self._began_at = self.threads.now() - self.scheduler.state.now_seconds
        self._changed = Condition()
        self.change = 1
        """It grows with every event that changes what clients see. It is never 0: callers that have
        seen nothing yet pass 0, and must get an answer at once."""
        self._beaten = False
        self._waits_ended = False
        self._stopped = False

    @property
    def now_seconds(self) -> float:
        """Experiment time: the seconds that this manager and those before it have run."""
        return self.threads.now() - self._began_at

    def start(self, sink: ManagerSink, first: Sequence[out.Command] = ()) -> None:
        """Begin to take events; an earlier manager has left the `first` commands undone."""
        # Set it again, because recovery has moved the core's time since we made this driver.
        self._began_at = self.threads.now() - self.scheduler.state.now_seconds
        self._sink = sink
        self._node = self.node_class(self.scheduler, sink)
        self._first = list(first)
        self._thread = self.threads.start("scheduler", self._run)

    def end_waits(self) -> None:
        """End all waits for a change, now and later, because the manager is closing."""
        with self._changed:
            self._waits_ended = True
            self._changed.notify_all()

    def stop(self) -> None:
        """Take no more events; returns when the thread has ended."""
        self.end_waits()
        # This also ends the retries of a commit, because a lost directory must not hold up the end.
        self._ending.set()
        self._queue.put(None)
        self._thread.join()
        self._stopped = True
        self._refuse_the_rest()

    def post(self, event: on.Event) -> Future[Output]:
        """Hand an event to the core; the reply comes when its consequences are durable.

        If the driver has stopped, it raises Refused, as busy; the event may have taken effect.
        """
        done: Future[Output] = self.threads.reply()
        self._put(Posted(event, done))
        return done

    def ask(self, question: Callable[[Scheduler], T]) -> T:
        """Read the core's state, and change nothing; raises what `question` raises, or Refused."""
        done: Future[T] = self.threads.reply()
        self._put(Asked(question, done))
        return done.result()

    def wait_for_change(self, after: int, timeout_seconds: float) -> bool:
        """Wait for a change later than number `after`; returns whether there was one."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._waits_ended or self.change > after, timeout_seconds
            )
            return self.change > after

    def insist(self, act: Callable[[], T]) -> T:
        """Call `act`; while the directory is away, retry for as long as a commit would."""
        return self._retry_policy.call_through_outage(act)

    def _put(self, item: _Item) -> None:
        self._queue.put(item)
        # Check this after putting the item: either this thread sees that the driver has stopped, or
        # the stopping thread finds the item. So no caller waits forever.
        if self._stopped:
            self._refuse_the_rest()

    def _refuse_the_rest(self) -> None:
        with suppress(Empty):
            while True:
                item = self._queue.get_nowait()
                if item is not None and item.asker is not None:
                    item.asker.set_exception(_stopping())

    def _run(self) -> None:
        try:
            # These need no commit, because they follow from entries that we read from the journals.
            if self._first:
                self.check_leader()
            self._sink.carry_out(self._first)
            self._serve()
        except BaseException as error:  # noqa: BLE001 - any exception ends the manager
            self._end_because_of(error)

    def _serve(self) -> None:
        self._node.start(self.now_seconds)
        while True:
            items = self._next_items(max(0.0, self._node.wake_at_seconds - self.now_seconds))
            self._take([item for item in items if item is not None])
            if None in items:
                return

    def _end_because_of(self, error: BaseException) -> None:
        """Refuse all waiting items, because this manager stops, and report the reason."""
        # Set this first, so that threads that put items from now on refuse them.
        self._stopped = True
        # The current batch, too: its journal may not be synced, and callers may repeat anything.
        for item in self._taken:
            # The driver may have answered those before the failure, whose consequences are durable.
            if item.asker is not None and not item.asker.done():
                item.asker.set_exception(_stopping())
        self._refuse_the_rest()
        self.end_waits()
        if isinstance(error, StoreError):
            self.on_death(error)
            return
        log.info("the manager ends", exc_info=error)
        self.on_death(FailStop(_described(error)))

    def _next_items(self, timeout_seconds: float) -> list[_Item | None]:
        """Wait for an item, and return it with all items behind it; None marks the end."""
        # One sync serves all waiting items. A disk takes about as long for one journal line as for
        # many, so under load the journal costs less per event.
        items: list[_Item | None] = []
        with suppress(Empty):
            items.append(self._queue.get(timeout=timeout_seconds))
            while items[-1] is not None and len(items) < BATCH_MAX_EVENTS:
                items.append(self._queue.get_nowait())
        return items

    def _take(self, items: list[_Item]) -> None:
        """Take items into the core, make the consequences durable, then act and answer.

        If this raises, no caller has got an answer for an event that may be lost.
        """
        self._taken = items
        ready = self._node.take(items, self.now_seconds)
        if ready.stood_still_seconds:
            log.warning("the manager stood still for %.0f s", ready.stood_still_seconds)
        self._commit()
        # After the commit, because another manager may have begun its term while this one waited
        # for the disk. Before acting, because nothing undoes a replaced manager's actions.
        if ready.must_lead:
            self.check_leader()
        for step in ready.steps:
            self._act(step)
        self._taken = []

    def _commit(self) -> None:
        """Commit with retries, because a full disk may get room and a directory may come back."""
        try:
            self._sink.commit()
        except SharedDirectoryError as error:
            log.warning("cannot write the journal, will retry: %s", error)
            self._retry_policy.call_through_outage(self._sink.commit)
            log.warning("writing the journal works again")

    def _act(self, step: _Step) -> None:
        if step.event is not None:
            self._sink.carry_out(step.output.commands)
        if step.asker is not None and step.error is not None:
            step.asker.set_exception(step.error)
        elif step.asker is not None:
            step.asker.set_result(step.answer)
        if step.event is not None:
            self._announce(step)

    def _announce(self, step: _Step) -> None:
        """Wake clients that wait for a change; a heartbeat alone waits for the next tick."""
        # To wake all clients ten times per second and worker would cost more than heartbeats do.
        quiet = not step.output.commands and not step.output.facts
        if quiet and isinstance(step.event, on.HeartbeatReceived):
            self._beaten = True
            return
        if quiet and isinstance(step.event, on.Tick) and not self._beaten:
            return
        self._beaten = False
        with self._changed:
            self.change += 1
            self._changed.notify_all()


def _stopping() -> Refused:
    return Refused("manager", "is stopping", busy=True)


def _described(error: BaseException) -> str:
    """Describe an exception and its place in one line."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    frames = traceback.extract_tb(error.__traceback__)
    return (
        f"{text} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else text
    )


@dataclass(eq=False)
class ManagerSink:
    """Journals events and starts commands, for the driver's thread.

    `keep` writes nothing; it gathers the consequences of one event. `commit` writes them. The rules
    for journaling and syncing are in `core/node/journal.py`. `first_order` is the number of the
    next entry, counted over all experiments.
    """

    spaces: Mapping[str, workspace.Workspace]
    roster: Roster
    archive: takeover.Archive
    runner: command_runner.CommandRunner
    forecaster: Forecaster | None = None
    announcer: observations.ManagerAnnouncer | None = None
    first_order: InitVar[int] = 1
    checkpoint_rounds: InitVar[int] = CHECKPOINT_ROUNDS

    def __post_init__(self, first_order: int, checkpoint_rounds: int) -> None:
        """Begin with no entry."""
        self.observations = observations.Observations(self.spaces, self.roster)
        self.journaling = Journaling(self._journal_of, first_order, checkpoint_rounds)

    def forecasts(self, at_seconds: float) -> on.Forecasts | None:
        """Return new forecasts, if there are any; see `Forecaster`."""
        return self.forecaster.forecasts(at_seconds) if self.forecaster is not None else None

    def keep(self, core: Scheduler, event: on.Event, output: Output) -> list[Entry]:
        """Gather the journal entries of an event and its output; returns the ones for replay."""
        if self.forecaster is not None:
            self.forecaster.follow(core, event, output)
        if self.announcer is not None:
            self.announcer.note(core, output)
        story = self.observations.story(core, event, output)
        gathered = self.journaling.keep(core, event, story)
        for order, entry in gathered:
            if isinstance(entry, on.ExperimentSubmitted):
                self.archive.places[entry.experiment] = order
            if isinstance(entry, out.Concluded):
                # Set this now, not when the command runs. The command waits behind other work, and
                # a preparation that ends in the meantime must find the experiment concluded.
                self.spaces[entry.experiment].concluded = True
                ended = core.state.experiments[entry.experiment]
                self.archive.conclude(status.summary(core.state, ended))
        return [entry for _, entry in gathered]

    def commit(self) -> None:
        """Write all gathered entries; returns when the ones that change results are durable.

        If only one experiment's folder is gone, it holds up no others: its entries wait in memory
        until the folder is back or the experiment has failed.
        """
        self.journaling.commit(is_gone=self._is_gone)
        if self.announcer is not None:
            self.announcer.announce()

    def carry_out(self, commands: Sequence[out.Command]) -> None:
        """Start the commands, which returns at once."""
        for command in commands:
            self.runner.start(command)

    def _is_gone(self, experiment: str) -> bool:
        space = self.spaces[experiment]
        space.look()
        return space.is_gone

    def _journal_of(self, experiment: str) -> JournalWriter | None:
        space = self.spaces.get(experiment)
        return space.journal if space is not None else None
