"""A worker that a `WorkerNode` drives, and that trains by letting virtual time pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from downpour.base.errors import Refused, SharedDirectoryError
from downpour.base.states import Failure
from downpour.base.values import AttemptId, Snapshot, Update
from downpour.core.node.attempt import StepLoop
from downpour.core.node.manager import HeartbeatAnswer
from downpour.core.node.worker import (
    Action,
    Beat,
    End,
    Register,
    Report,
    SaveAndStop,
    SaveOrStop,
    Stop,
    Stopped,
    TryAnotherManager,
    WorkerNode,
    next_address,
)
from downpour_lab.simulated.environment import Environment, What, WorkerAction
from downpour_lab.simulated.machines import SimulatedAttempt
from downpour_lab.simulated.network import (
    OVERDUE,
    STOPPING,
    UNREACHABLE,
    Answer,
    Refusal,
    RegistrationReply,
    TrainRequest,
)
from downpour_lab.simulated.training import Trainer, Training

_STEP_SECONDS = 0.05
_REGISTER_SECONDS = 1.0

NodeClass = Callable[[str], WorkerNode[SimulatedAttempt]]


class SimulatedWorker(Trainer):
    """One life of a worker; `on_death` may start the next.

    Args:
        environment: what all processes share.
        name: its name, after its machine; the manager may register it under another name.
        host: its machine, which is also its address.
        manager: the address of its first manager.
        on_death: called when it has left or crashed.
        node_class: makes the node that decides.
        loop_class: decides between the steps of a task.
    """

    role = "worker"

    def __init__(
        self,
        environment: Environment,
        name: str,
        host: str,
        manager: str,
        on_death: Callable[[SimulatedWorker], None],
        node_class: NodeClass = WorkerNode,
        loop_class: type[StepLoop] = StepLoop,
    ) -> None:
        super().__init__(environment.clock, host)
        self.environment = environment
        self.node = node_class(name)
        self.training = Training(environment, self, name, loop_class)
        self._identity = environment.random.getrandbits(48)
        self._given = manager
        self._manager = manager
        self._machine = name
        self._on_death = on_death
        self._waits_to_beat = False
        self._beat_number = 0

    @property
    def name(self) -> str:
        """Its own name, or the one that the manager registered it under."""
        return self.node.name

    # The service

    def ping(self, answer: Answer) -> None:
        """Answer with the worker's name."""
        answer(self.name)

    def train(self, answer: Answer, task: TrainRequest) -> None:
        """Accept a task, unless it comes from a replaced manager."""
        self.see("asked", task.attempt, term=task.term)
        try:
            actions = self.node.train(
                SimulatedAttempt(task.attempt, (task.model, task.share, task.portion), task=task),
                task.term,
            )
        except Refused as refusal:
            answer(Refusal(str(refusal)))
            return
        answer(None)
        self._do(actions)
        self._next()

    def cancel(self, answer: Answer, attempt: AttemptId) -> None:
        """Stop an attempt, or forget it if it has not begun."""
        answer(None)
        self.see("cancelled", attempt)
        self._do(self.node.cancel(attempt))

    def hand_over(self, answer: Answer, attempt: AttemptId) -> None:
        """Publish the state of an attempt at its next step, and stop."""
        answer(None)
        self.see("to hand over", attempt, held=self.node.running)
        self._do(self.node.hand_over(attempt))

    def drain(self, answer: Answer) -> None:
        """Finish the attempts accepted so far, then leave."""
        answer(None)
        self.see("drains")
        self.node.drain()
        self._next()

    def _do(self, actions: Sequence[Action[SimulatedAttempt]]) -> None:
        """Carry out the node's actions; an attempt stops at its next step."""
        for action in actions:
            match action:
                case Stop():
                    action.held.stop()
                    self.after(_STEP_SECONDS, self.training.stop, action.held)
                case SaveAndStop():
                    action.held.save_and_stop()
                    self.training.end_step(action.held)
                case SaveOrStop():
                    action.held.save_or_stop()
                    self.training.end_step(action.held)
                case Register():
                    self._register(self._registered, self._unheard)
                case TryAnotherManager():
                    self._look_elsewhere()

    # Its life

    def start(self) -> None:
        """Register, repeating the call until a manager answers; then send heartbeats."""
        self.environment.network.serve(self.host, self)
        self._register(self._registered, self._try_to_register_again)

    def _registered(self, reply: RegistrationReply) -> None:
        self.node.name = reply.worker
        timings = self.environment.timings
        self.node.met(reply.term, timings.patience, timings.heartbeat_seconds)
        self.see("met", term=reply.term)
        self._beat_later()

    def _try_to_register_again(self, _: str) -> None:
        self._look_elsewhere()
        self.after(_REGISTER_SECONDS, self.start)

    def _register(self, answered: Answer, failed: Callable[[str], None]) -> None:
        try:
            self.environment.disk.ask(self.host, "read")  # the manager's presence file
        except SharedDirectoryError as error:
            failed(str(error))
            return
        self._call(
            "register_worker", self.name, self.host, self._identity, self.node.attempt,
            answered=answered, failed=failed,
        )  # fmt: skip

    def crash(self, why: str, *, with_machine: bool = False) -> None:
        """Die at once; if its machine dies too, its peers don't notice that connections end."""
        if self.alive:
            self.die()
            if not with_machine:
                self.environment.network.hang_up(self)
            self.environment.tell(f"{self.host} dies {why}")
            self._on_death(self)

    def leave(self) -> None:
        """Save and stop the running attempt, say goodbye and leave."""
        if self.node.leaving or not self.alive:
            return
        self.environment.tell(f"{self.host} leaves")
        running = self.node.running
        held = (running.attempt,) if running is not None else ()
        self.see("leaves", *held, held=running)
        self._do(self.node.leave())
        self._next()

    def _go(self, _: Any) -> None:
        self.die()
        self.environment.network.hang_up(self)
        self._on_death(self)

    def _call(
        self, method: str, *args: Any, answered: Answer, failed: Callable[[str], None]
    ) -> None:
        self.environment.network.call(
            self, self._manager, method, *args, answered=answered, failed=failed
        )

    # The heartbeat

    def _beat_later(self) -> None:
        """Wait for the next heartbeat, which comes sooner if a task begins meanwhile."""
        self.training.look()
        self._waits_to_beat = True
        self._beat_number += 1
        self.after(self.node.until_next_beat(self.clock.now_seconds), self._beat, self._beat_number)

    def _beat(self, number: int) -> None:
        if self.node.leaving or number != self._beat_number:
            return
        self._waits_to_beat = False
        self.training.look()
        beat = self.node.beat()
        self.see("beats", *(one.attempt for one in beat.running))

        def heard(answer: HeartbeatAnswer) -> None:
            self._heard(beat, answer)

        state = self.environment.machines.state(self._machine, self.clock.now_seconds)
        self._call(
            "heartbeat", self.name, beat.running, state, answered=heard, failed=self._unheard
        )

    def _heard(self, beat: Beat[SimulatedAttempt], answer: HeartbeatAnswer) -> None:
        for attempt in answer.unwanted:
            self.see("cancelled", attempt)
        if answer.known:
            self.see("heard")
        self._do(self.node.beat_answered(beat, **answer._asdict()))
        if answer.known:
            self.training.save_if_due()
            self._beat_later()

    def _unheard(self, reason: str) -> None:
        self._do(self.node.beat_failed(unreachable=reason == UNREACHABLE))
        self._beat_later()

    def _look_elsewhere(self) -> None:
        try:
            self.environment.disk.ask(self.host, "list")
            of_leader = self.environment.disk.terms[-1:]
        except SharedDirectoryError:
            of_leader = []
        self._manager = next_address(self._given, of_leader, self._manager) or self._manager

    # Tasks, one after the other

    def _next(self) -> None:
        """Begin the next attempt, or say goodbye if none will come."""
        running = self.node.take(self.clock.now_seconds)
        if running is not None:
            self.see("begins", running.attempt)
            if self._waits_to_beat:
                self._beat_later()
            self.training.begin(running)
        elif self.node.is_done:
            self._call("leave", self.name, answered=self._go, failed=self._go)

    def ended(self, running: SimulatedAttempt, end: End) -> None:
        """Report how an attempt ended, if the node says so."""
        if isinstance(end, Stopped):
            self.see("stopped", running.attempt, held=running)
        report = self.node.ended(end)
        if report is None:
            self._freed()
        else:
            self._report(running.attempt, report)

    def _report(self, attempt: AttemptId, report: Report) -> None:
        def taken(_: Any) -> None:
            self.node.report_taken()
            self._freed()

        def failed(reason: str) -> None:
            later = reason in {UNREACHABLE, OVERDUE, STOPPING}
            chance = self.environment.random.random()
            wait = self.node.report_failed(chance, may_be_heard_later=later)
            if not later or self.node.leaving:
                self._freed()
            elif wait is None:
                self._next()
            else:
                self.after(wait, self._report, attempt, report)

        method, args = _call_of(report)
        self._call(method, self.name, attempt, *args, answered=taken, failed=failed)

    def _freed(self) -> None:
        self.see("free")
        self._next()

    def see(
        self,
        what: What,
        *attempts: AttemptId,
        term: int = 0,
        held: SimulatedAttempt | None = None,
    ) -> None:
        """Show an action to the observer, and how far the `held` attempt had come by then."""
        action = WorkerAction(self, what, self.clock.now_seconds, attempts, term)
        if held is not None:
            steps = max(held.steps_done, self.training.steps_done(held))
            action.own_steps = steps - held.steps_before
            action.steps_left = held.steps_total - steps
        self.environment.observer.working(action)


def _call_of(report: Report) -> tuple[str, tuple[Any, ...]]:
    match report:
        case Update():
            return "report_update", (report,)
        case Snapshot():
            return "report_hand_over", (report,)
        case Failure():
            return "report_failure", (report.kind, report.reason)
