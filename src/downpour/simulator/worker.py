"""A worker that behaves as `worker/agent.py` does, and trains by letting time pass.

It registers, beats, and takes tasks; a new one supersedes the one before. It insists on a report
until somebody acknowledges it. Where it cannot reach its manager it looks for the one in office.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Literal

from downpour.simulator import contents
from downpour.simulator.clock import Process
from downpour.simulator.effects import SAMPLES
from downpour.simulator.messages import Registered, Task
from downpour.simulator.network import OVERDUE, UNREACHABLE, Answer, Refusal
from downpour.simulator.site import Site
from downpour.store import layout
from downpour.values import AttemptId, FailureKind, Progress, PublishedFile, Update

Phase = Literal["reading", "training", "publishing", "reporting"]

_STEP_SECONDS = 0.05
_REGISTER_SECONDS = 1.0
_INSIST_FIRST_SECONDS = 0.2
_INSIST_LONGEST_SECONDS = 5.0


class _Running:
    """The attempt that a worker is at."""

    __slots__ = ("attempt", "cancelled", "phase", "progress", "state", "task")

    def __init__(self, task: Task) -> None:
        self.task = task
        self.attempt = task.attempt
        self.phase: Phase = "reading"
        self.cancelled = False
        self.state = b""
        self.progress = Progress(
            attempt=task.attempt, steps_done=0, steps_total=1, elapsed_seconds=0.0
        )


class Worker(Process):
    """One life of a worker; `on_death` starts the next where there is to be one.

    Args:
        site: the world.
        name: what it calls itself; the manager may have it called otherwise.
        host: its machine, which is its address.
        manager: the address it was told.
        on_death: told when it has left or crashed.
    """

    def __init__(
        self,
        site: Site,
        name: str,
        host: str,
        manager: str,
        task_seconds: float,
        on_death: Callable[[Worker], None],
    ) -> None:
        super().__init__(site.clock, host)
        self.site = site
        self.name = name
        self.fails_next = 0
        self.damages_next = 0
        self.dies_at: Phase | None = None
        self._identity = site.random.getrandbits(48)
        self._told = manager
        self._manager = manager
        self._task_seconds = task_seconds
        self._on_death = on_death
        self._inbox: deque[Task] = deque()
        self._wanted: AttemptId | None = None
        self._running: _Running | None = None
        self._leaving = False
        self._term = 0

    # The service

    def ping(self, answer: Answer) -> None:
        """Say who is here."""
        answer(self.name)

    def train(self, answer: Answer, task: Task) -> None:
        """Take a task, but not from a manager that was replaced; it supersedes what is running."""
        if task.term < self._term:
            answer(Refusal("a later manager is in office"))
            return
        answer(None)
        if self._wanted == task.attempt:
            return
        self._wanted = task.attempt
        if self._running is not None:
            self._give_up(self._running)
        self._inbox.append(task)
        self._next_task()

    def cancel(self, answer: Answer, attempt: AttemptId) -> None:
        """Stop an attempt, or forget it where it has not begun."""
        answer(None)
        self._forget(attempt)

    def _forget(self, attempt: AttemptId) -> None:
        if self._wanted == attempt:
            self._wanted = None
        if self._running is not None and self._running.attempt == attempt:
            self._give_up(self._running)

    def _give_up(self, running: _Running) -> None:
        running.cancelled = True
        if running.phase == "training":
            self.after(_STEP_SECONDS, self._stop_training, running)

    # Its life

    def start(self) -> None:
        """Register, however often that takes; then beat."""
        self.site.network.serve(self.host, self)
        self._register(self._registered, self._try_to_register_again)

    def _registered(self, reply: Registered) -> None:
        self.name = reply.worker
        self._term = max(self._term, reply.term)
        self.after(self.site.figures.heartbeat_seconds, self._beat)

    def _try_to_register_again(self, _: str) -> None:
        self._turn_to_another()
        self.after(_REGISTER_SECONDS, self.start)

    def _register(self, answered: Answer, failed: Callable[[str], None]) -> None:
        running = self._running.attempt if self._running is not None else None
        self._call(
            "register", self.name, self.host, self._identity, running,
            answered=answered, failed=failed,
        )  # fmt: skip

    def crash(self, why: str) -> None:
        """Die at once."""
        if self.alive:
            self.die()
            self.site.tell(f"{self.host} dies {why}")
            self._on_death(self)

    def leave(self) -> None:
        """Give up what is running, say goodbye and go."""
        if self._leaving or not self.alive:
            return
        self._leaving = True
        self.site.tell(f"{self.host} leaves")
        self._call("leave", self.name, answered=self._go, failed=self._go)

    def _go(self, _: Any) -> None:
        self.die()
        self._on_death(self)

    def _call(
        self, method: str, *args: Any, answered: Answer, failed: Callable[[str], None]
    ) -> None:
        self.site.network.call(self, self._manager, method, *args, answered=answered, failed=failed)

    # The heartbeat

    def _beat(self) -> None:
        if self._leaving:
            return
        running = (self._running.progress,) if self._running is not None else ()
        self._call("heartbeat", self.name, running, answered=self._heard, failed=self._unheard)

    def _heard(self, reply: tuple[bool, list[AttemptId]]) -> None:
        known, unwanted = reply
        for attempt in unwanted:
            self._forget(attempt)
        if known:
            self.after(self.site.figures.heartbeat_seconds, self._beat)
        else:
            self._register(self._registered, self._unheard)

    def _unheard(self, reason: str) -> None:
        if reason == UNREACHABLE:  # who is merely slow is still in office
            self._turn_to_another()
        self.after(self.site.figures.heartbeat_seconds, self._beat)

    def _turn_to_another(self) -> None:
        terms = self.site.disk.terms
        in_office = terms[-1] if terms else self._told
        self._manager = self._told if self._manager != self._told else in_office

    # Tasks, one after the other

    def _next_task(self) -> None:
        while self._running is None and self._inbox and not self._leaving:
            task = self._inbox.popleft()
            if task.attempt == self._wanted:
                self._running = _Running(task)
                self._read(self._running)

    def _enter(self, running: _Running, phase: Phase) -> bool:
        """Go on to the next phase; says whether it lives to see it."""
        running.phase = phase
        if self.dies_at == phase:
            self.after(0.0, self.crash, f"while {phase}")
        return not self._leaving

    def _read(self, running: _Running) -> None:
        experiment, task = running.attempt.experiment, running.task
        read = self.site.disk.read

        def with_model(model: bytes) -> None:
            if task.optimizer_state is None:
                self._train(running, model, b"")
            else:
                read(
                    self,
                    experiment,
                    task.optimizer_state,
                    lambda state: self._train(running, model, state),
                    failed,
                )

        def failed(reason: str) -> None:
            self._fail(running, FailureKind.STORE, reason)

        if self._enter(running, "reading"):
            read(self, experiment, task.model, with_model, failed)

    def _train(self, running: _Running, model: bytes, state: bytes) -> None:
        if not self._enter(running, "training"):
            return
        if running.cancelled:
            self._stop_training(running)
            return
        attempt = running.attempt
        update = contents.trained(attempt.round, attempt.shard, model, state)
        seconds = self.site.varied(self._task_seconds, self.site.figures.spread)
        self.after(seconds, self._trained, running, update, seconds)

    def _stop_training(self, running: _Running) -> None:
        if running.phase == "training" and not self._leaving:
            self._fail(running, FailureKind.CANCELLED, "handed back")

    def _trained(self, running: _Running, update: bytes, seconds: float) -> None:
        if running.phase != "training" or self._leaving:
            return
        if self.fails_next:
            self.fails_next -= 1
            self._fail(running, FailureKind.NON_FINITE, "the loss is not finite")
        elif self._enter(running, "publishing"):
            self._publish(running, update, seconds)

    def _publish(self, running: _Running, content: bytes, seconds: float) -> None:
        attempt, disk = running.attempt, self.site.disk
        numbers = attempt.round, attempt.shard, attempt.attempt
        name = layout.update_name(*numbers, self.site.token())

        def failed(reason: str) -> None:
            self._fail(running, FailureKind.STORE, reason)

        def published(file: PublishedFile) -> None:
            if self.damages_next:
                self.damages_next -= 1
                disk.damaged.add(file.name)
            if not running.task.keeps_state:
                self._report(running, _update(file, None, seconds))
                return
            state = layout.optimizer_name(*numbers, self.site.token())
            disk.publish(
                self,
                attempt.experiment,
                state,
                contents.state_after(content),
                lambda kept: self._report(running, _update(file, kept, seconds)),
                failed,
            )

        disk.publish(self, attempt.experiment, name, content, published, failed)

    # Reports

    def _report(self, running: _Running, update: Update) -> None:
        self._insist(running, "report_update", running.attempt, update)

    def _fail(self, running: _Running, kind: FailureKind, reason: str) -> None:
        self._insist(running, "report_failure", running.attempt, kind, reason)

    def _insist(self, running: _Running, method: str, *args: Any) -> None:
        if self._enter(running, "reporting"):
            self._try_to_report(method, args, _INSIST_FIRST_SECONDS)

    def _try_to_report(self, method: str, args: tuple[Any, ...], at_most_seconds: float) -> None:
        def failed(reason: str) -> None:
            if self._leaving:
                return
            if reason not in {UNREACHABLE, OVERDUE}:
                self._free(reason)
                return
            longer = min(at_most_seconds * 2, _INSIST_LONGEST_SECONDS)
            wait = at_most_seconds * self.site.random.random()
            self.after(wait, self._try_to_report, method, args, longer)

        if not self._leaving:
            self._call(method, self.name, *args, answered=self._free, failed=failed)

    def _free(self, _: Any) -> None:
        self._running = None
        self._next_task()


def _update(file: PublishedFile, state: PublishedFile | None, seconds: float) -> Update:
    return Update(
        file=file,
        samples=SAMPLES,
        steps=1,
        loss=0.5,
        load_seconds=0.0,
        train_seconds=seconds,
        publish_seconds=0.0,
        optimizer_state=state,
    )
