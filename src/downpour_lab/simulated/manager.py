"""A manager that a `ManagerNode` drives in virtual time, and that can die at any point.

It drives the node as `cluster/manager/driver.py` does, and answers calls as
`cluster/manager/service.py` does. A fault can name the point at which the manager dies (`die_at`),
because a random moment hardly ever falls between journaling and acting.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, TypeVar

from downpour.base.errors import SharedDirectoryError
from downpour.core.node.journal import JournalWriter
from downpour.core.node.manager import (
    BATCH_MAX_EVENTS,
    LOOK_SECONDS,
    STOOD_STILL_SECONDS,
    Asked,
    ManagerNode,
    Posted,
    Question,
    Ready,
    Step,
)
from downpour.core.scheduler import Entry, Output, Scheduler, SchedulerOptions
from downpour.core.scheduler import events as on
from downpour.predictor.forecaster import Forecaster
from downpour.record.journal import next_order, replay
from downpour_lab.simulated.command_runner import SimulatedCommandRunner
from downpour_lab.simulated.directory_work import SimulatedPersistence
from downpour_lab.simulated.environment import Environment, Observation, Stories
from downpour_lab.simulated.manager_calls import ManagerCalls
from downpour_lab.simulated.network import STOPPING, Answer, Refusal

DeathPoint = Literal["", "before it keeps", "while it keeps", "before it acts", "while it acts"]
DEATH_POINTS: tuple[DeathPoint, ...] = (
    "before it keeps",
    "while it keeps",
    "before it acts",
    "while it acts",
)

_LOCK_SECONDS = 0.5
# A wait is a difference of times. So it may end a rounding error before the tick is due.
_ROUNDING_SECONDS = 1e-6
_INSIST_SECONDS = 1.0

T = TypeVar("T")
Node = ManagerNode[Answer]
_Item = Posted[Answer] | Asked[Answer]


class SimulatedManager(ManagerCalls):
    """One life of a manager; `on_death` starts the next."""

    journal_class: type[JournalWriter] = JournalWriter
    node_class: type[Node] = ManagerNode

    def __init__(
        self, environment: Environment, host: str, on_death: Callable[[str], None]
    ) -> None:
        super().__init__(environment, host)
        self.term = 0
        self.skew_seconds = 0.0
        self.die_at: DeathPoint = ""
        self.core = self.make_core()
        self.node = self.node_class(self.core, self)
        self.runner = SimulatedCommandRunner(environment, self)
        self.forecaster = (
            Forecaster(environment.predictor()) if environment.predictor is not None else None
        )
        self._on_death = on_death
        self._began_at = 0.0
        self._queue: deque[_Item] = deque()
        self._working = False
        self._is_due_later = False
        self._committing = False
        self._stopping = False

    def make_core(self) -> Scheduler:
        """Make an empty core."""
        options = SchedulerOptions(patience=self.environment.timings.patience)
        return Scheduler(options, policies=self.environment.policies)

    @property
    def now_seconds(self) -> float:
        """Experiment time."""
        return self.clock.now_seconds - self._began_at + self.skew_seconds

    # Its life

    def start(self) -> None:
        """Wait for the lock, replay the journals, and serve."""
        if self._begins(lambda: self.environment.disk.lock(self)):
            reading = self._takes(self.environment.timings.recover_seconds)
            self.after(reading, self._recover)
        else:
            self.after(_LOCK_SECONDS, self.start)

    def _begins(self, step: Callable[[], T]) -> T | None:
        """Take a step of the start; if the directory fails, end, so that another can try."""
        try:
            return step()
        except SharedDirectoryError:
            self.crash("because it cannot begin")
            return None

    def _takes(self, seconds: float) -> float:
        return self.environment.disk.takes(seconds, self.host)

    def _recover(self) -> None:
        self.term = self._begins(lambda: self.environment.disk.claim(self.host)) or 0
        self.after(self._takes(self.environment.disk.timings.write_seconds), self._read)

    def _read(self) -> None:
        stories = self._begins(self.read_journals)
        if stories is not None:
            left_out = replay(self.core, stories)
            self._serve({name: story for name, story in stories.items() if name not in left_out})

    def read_journals(self) -> Stories:
        """Sync the journals and then read them, because all later lines rest on them."""
        self.environment.disk.ask(self.host, "read")
        self.environment.disk.settle()
        return self.environment.disk.stories()

    def _serve(self, stories: Stories) -> None:
        self.environment.observer.recovered(self.core, stories)
        self.persistence = SimulatedPersistence(
            self.environment.disk,
            self,
            self.term,
            next_order(stories),
            self.environment.timings.checkpoint_rounds,
            self.journal_class,
        )
        for experiment, story in stories.items():
            ended = self.core.state.experiments[experiment].life.state.ended
            self.persistence.take_up(experiment, story, ended=ended)
        try:
            self.begin_journals()
        except SharedDirectoryError:
            self.crash("because it cannot begin")
            return
        self.runner.take_up(self.core)
        self._began_at = self.clock.now_seconds - self.core.state.now_seconds
        lines = sum(map(len, stories.values()))
        self.environment.tell(f"{self.host} leads, term {self.term}, with {lines} journaled lines")
        for command in self.core.resume():
            self.runner.start(command)
        self.environment.network.serve(self.host, self)
        self.node.start(self.now_seconds)
        self._rest()
        self.after(LOOK_SECONDS, self._check_leader)

    def begin_journals(self) -> None:
        """Write the journals that we read, before we remove any file."""
        self.persistence.begin()

    def crash(self, why: str, *, machine_for_seconds: float = 0.0) -> None:
        """Die at once; if the machine dies as well, it may lose lines that it had not synced."""
        if not self.alive:
            return
        if self._committing:
            self.persistence.tear()
        if machine_for_seconds:
            self.environment.disk.lose_unsynced(self.host)
            self.environment.disk.unlock_later(self, machine_for_seconds)
        self.die()
        if not machine_for_seconds:
            self.environment.network.hang_up(self)
        self.environment.tell(f"{self.host} dies {why}")
        self._on_death(self.host)

    def stop(self) -> None:
        """Stop in order: finish the current events, and refuse the others."""
        if not self.alive:
            return
        self._stopping = True
        if not self._working:
            self._end()

    def _end(self) -> None:
        while self._queue:
            asker = self._queue.popleft().asker
            if asker is not None:
                asker(Refusal(STOPPING, "BUSY"))
        self.die()
        self.environment.network.hang_up(self)
        self.environment.tell(f"{self.host} stops")
        self._on_death(self.host)

    def _check_leader(self) -> None:
        if not self.is_leader():
            self.crash("because another manager leads")
        self.after(LOOK_SECONDS, self._check_leader)

    def is_leader(self) -> bool:
        """Whether no other manager has begun a later term; true if the terms cannot be listed."""
        try:
            return self.leads()
        except SharedDirectoryError:
            return True

    def leads(self) -> bool:
        """Return whether no other manager has begun a later term; SharedDirectoryError: unseen."""
        self.environment.disk.ask(self.host, "list")
        return len(self.environment.disk.terms) == self.term

    # The driver

    def post(self, event: on.Event, answer: Answer | None = None) -> None:
        """Queue an event; answer it when it is journaled and its commands have begun."""
        self._put(Posted(event, answer))

    def ask(self, question: Question, answer: Answer) -> None:
        """Queue a question, to answer between two events."""
        self._put(Asked(question, answer))

    def _put(self, item: _Item) -> None:
        if self._stopping:
            if item.asker is not None:
                item.asker(Refusal(STOPPING, "BUSY"))
            return
        self._queue.append(item)
        if not self._working:
            self._work()

    def _work(self) -> None:
        """Handle the events that have arrived, after the time that they cost the manager."""
        self._working = True
        together = min(len(self._queue), BATCH_MAX_EVENTS)
        self.after(self.environment.timings.event_seconds * max(1, together), self._take, together)

    def _rest(self) -> None:
        """Wait until an event arrives or a tick is due."""
        self._working = False
        wait = self.node.wake_at_seconds - self.now_seconds
        if self._stopping:
            self._end()
        elif self._queue or wait <= 0:
            self._work()
        elif not self._is_due_later:
            self._is_due_later = True
            # If a clock is set back, this simulation's own queue must not stop.
            self.after(min(wait, STOOD_STILL_SECONDS) + _ROUNDING_SECONDS, self._due)

    def _due(self) -> None:
        self._is_due_later = False
        if not self._working:
            self._rest()

    def _take(self, together: int) -> None:
        items = [self._queue.popleft() for _ in range(together)]
        ready = self.node.take(items, self.now_seconds)
        kept = any(step.kept for step in ready.steps)
        if kept and self.die_at == "before it keeps":
            self.crash(self.die_at)
            return
        self.commit(lambda: self._act(ready, kept=kept))

    def forecasts(self, at_seconds: float) -> on.Forecasts | None:
        """Forecast, if the manager has a predictor."""
        return self.forecaster.forecasts(at_seconds) if self.forecaster is not None else None

    def keep(self, core: Scheduler, event: on.Event, output: Output) -> Sequence[Entry]:
        """Gather and return the entries that must be journaled."""
        if self.forecaster is not None:
            self.forecaster.follow(core, event, output)
        kept = self.persistence.keep(core, event, output)
        self.environment.observer.handled(Observation(self.core, self.term, event, output, kept))
        return kept

    def commit(self, then: Callable[[], None]) -> None:
        """Make the gathered entries durable, then go on."""
        if not self.persistence.journaling.must_sync:
            self._commit(then, 0.0)
            return
        self._committing = True
        seconds = self._takes(self.environment.disk.timings.sync_seconds)
        if self.die_at == "while it keeps":
            self.after(seconds / 2, self.crash, self.die_at)
        self.after(seconds, self._commit, then, 0.0)

    def _commit(self, then: Callable[[], None], waited: float) -> None:
        try:
            self.persistence.commit()
        except SharedDirectoryError:
            if waited >= self.environment.disk.timings.patience_seconds:
                self._committing = False
                self.crash("because nothing can be kept")
            else:
                self.after(_INSIST_SECONDS, self._commit, then, waited + _INSIST_SECONDS)
            return
        self._committing = False
        then()

    def _act(self, ready: Ready[Answer], *, kept: bool, waited: float = 0.0) -> None:
        try:
            leads = not ready.must_lead or self.leads()
        except SharedDirectoryError:
            if waited >= self.environment.disk.timings.patience_seconds:
                self.crash("because it cannot see whether it leads")
            else:
                again = partial(self._act, ready, kept=kept, waited=waited + _INSIST_SECONDS)
                self.after(_INSIST_SECONDS, again)
            return
        if not leads:
            self.crash("because another manager leads")
            return
        if kept and self.die_at == "before it acts":
            self.crash(self.die_at)
            return
        dies = kept and self.die_at == "while it acts"
        for step in ready.steps[: len(ready.steps) // 2 if dies else None]:
            self._act_on(step)
        if dies:
            self.crash(self.die_at)
        else:
            self._rest()

    def _act_on(self, step: Step[Answer]) -> None:
        if step.event is not None:
            self.environment.observer.acting(
                Observation(self.core, self.term, step.event, step.output, step.kept)
            )
            for command in step.output.commands:
                self.runner.start(command)
        if step.asker is not None:
            step.asker(step.answer)
