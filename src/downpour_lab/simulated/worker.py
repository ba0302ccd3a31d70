"""A worker of the shipped parts, whose threads run in virtual time, and that can die at any point.

The agent and the flow of tasks are those of `cluster/worker/`. This file starts them over simulated
files and calls, and shows the run's observer what the worker hears and does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from downpour.base.errors import DownpourError, SharedDirectoryError
from downpour.base.values import AttemptId, NumericClass, ProcessState, SystemState
from downpour.cluster.worker.agent import ShownWorker, WorkerAgent
from downpour.cluster.worker.attempt import AcceptedTask
from downpour.core.node.attempt import HeldAttempt, StepLoop
from downpour.core.node.worker import (
    Action,
    Beat,
    End,
    Report,
    Stop,
    Stopped,
    WorkerNode,
    next_address,
)
from downpour.files.store import SharedDirectory
from downpour.network.rpc import ManagerClient
from downpour_lab.simulated.environment import Environment, What, WorkerAction, labels_of
from downpour_lab.simulated.threads import Process, RemoteProcess, SimulatedThreads
from downpour_lab.simulated.training import SimulatedTaskFlow

_STEP_SECONDS = 0.05
_REGISTER_SECONDS = 1.0
_NUMERIC_CLASS = NumericClass(torch="", device="cpu", instruction_set="")

NodeClass = type[WorkerNode[Any]]


class _SeenNode(WorkerNode[Any]):
    """A node of which the worker's observer sees what it hears and answers."""

    worker: SimulatedWorker

    def met(self, term: int, patience: float, heartbeat_seconds: float) -> None:
        super().met(term, patience, heartbeat_seconds)
        self.worker.see("met", term=term)

    def train(self, held: Any, term: int) -> list[Action[Any]]:
        self.worker.see("asked", held.attempt, term=term)
        return super().train(held, term)

    def cancel(self, attempt: AttemptId) -> list[Action[Any]]:
        self.worker.see("cancelled", attempt)
        return super().cancel(attempt)

    def hand_over(self, attempt: AttemptId) -> list[Action[Any]]:
        self.worker.see("to hand over", attempt)
        return super().hand_over(attempt)

    def drain(self) -> None:
        self.worker.see("drains")
        super().drain()

    def leave(self) -> list[Action[Any]]:
        if not self.leaving:
            running = self.running
            self.worker.see("leaves", *((running.attempt,) if running is not None else ()))
        return super().leave()

    def take(self, at_seconds: float) -> Any:
        begun = super().take(at_seconds)
        if begun is not None:
            self.worker.see("begins", begun.attempt)
        return begun

    def ended(self, end: End) -> Report | None:
        if isinstance(end, Stopped) and self.running is not None:
            self.worker.see("stopped", self.running.attempt)
        report = super().ended(end)
        if report is None:
            self.worker.see("free")
        return report

    def report_taken(self) -> None:
        super().report_taken()
        self.worker.see("free")

    def report_failed(self, chance: float, *, may_be_heard_later: bool) -> float | None:
        wait = super().report_failed(chance, may_be_heard_later=may_be_heard_later)
        if not may_be_heard_later or self.leaving:
            self.worker.see("free")
        return wait

    def until_next_beat(self, at_seconds: float) -> float:
        self.worker.look()
        return super().until_next_beat(at_seconds)

    def beat(self) -> Beat[Any]:
        self.worker.look()
        beat = super().beat()
        self.worker.see("beats", *(each.attempt for each in beat.running))
        return beat

    def beat_answered(
        self,
        beat: Beat[Any],
        *,
        known: bool,
        unwanted: Sequence[AttemptId],
        interval_seconds: float = 0.0,
    ) -> list[Action[Any]]:
        for attempt in unwanted:
            self.worker.see("cancelled", attempt)
        if known:
            self.worker.see("heard")
        actions = super().beat_answered(
            beat, known=known, unwanted=unwanted, interval_seconds=interval_seconds
        )
        if known:
            self.worker.save_if_due()
        return actions


class SimulatedAgent(WorkerAgent):
    """An agent whose attempts hear of their orders while they train."""

    def __init__(self, worker: SimulatedWorker, name: str, node_class: NodeClass) -> None:
        environment = worker.environment
        self.threads = SimulatedThreads(worker.process)
        self.chance = environment.random.random
        self._worker = worker

        def sample(_: float) -> tuple[SystemState, ProcessState | None]:
            now = environment.clock.now_seconds
            return environment.machines.state(worker.machine, now), None

        super().__init__(
            worker.client(worker.given),
            cast("SharedDirectory", worker),
            name,
            _NUMERIC_CLASS,
            worker.flow.run,
            worker.another_manager,
            type("SeenNode", (_SeenNode, node_class), {"worker": worker}),
            ShownWorker(
                hostname=worker.process.host,
                pid=environment.random.getrandbits(48),
                labels=labels_of(worker.process.host),
                sample=sample,
            ),
        )

    @property
    def running(self) -> AcceptedTask | None:
        """The attempt that runs."""
        return self._node.running

    @property
    def is_leaving(self) -> bool:
        """Whether the worker leaves."""
        return self._node.leaving

    def _do(self, actions: Sequence[Action[AcceptedTask]]) -> None:
        # First, because the agent may wait for a call among its actions.
        training = self._worker.flow.current
        for action in actions:
            match action:
                case Stop(ask=HeldAttempt.stop) if training is not None:
                    self._worker.process.after(_STEP_SECONDS, training.look_up)
                case Stop() if training is not None:
                    training.end_step()
        super()._do(actions)


class SimulatedWorker:
    """One life of a worker; `on_death` may start the next.

    The manager may register it under another `name`. Its `host` is also its address, and `manager`
    the address of its first manager. `loop_class` decides between the steps of a task.
    """

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
        self.environment = environment
        self.process = Process(environment.clock, host)
        self.process.role = "worker"
        self.host = host
        self.machine = name
        self.given = manager
        self._manager = manager
        self._on_death = on_death
        self.flow = SimulatedTaskFlow(environment, self, loop_class)
        self.agent = SimulatedAgent(self, name, node_class)

    # Its life

    def start(self) -> None:
        """Serve, register, and work until it leaves."""
        self.environment.network.serve(self.host, self.process, self.agent)
        self.process.begin(self._live)

    def _live(self) -> None:
        while True:
            try:
                self.agent.register(self.host, 0)
                break
            except DownpourError:
                self.agent.look_elsewhere()
                self.process.sleep(_REGISTER_SECONDS)
        self.agent.run()
        self._end()

    def crash(self, why: str, *, with_machine: bool = False) -> None:
        """Die at once; if its machine dies too, its peers don't notice that connections end."""
        if self.process.alive:
            self.environment.tell(f"{self.host} dies {why}")
            self._end(hang_up=not with_machine)

    def _end(self, *, hang_up: bool = True) -> None:
        self.process.die()
        if hang_up:
            self.environment.network.hang_up(self.process)
        self._on_death(self)

    def leave(self) -> None:
        """Save and stop the running attempt, say goodbye and leave."""
        if self.process.alive and not self.agent.is_leaving:
            self.environment.tell(f"{self.host} leaves")
            self.process.begin(self.agent.leave)

    def client(self, address: str) -> ManagerClient:
        """Return the manager at an address, for calls."""
        client = RemoteProcess(self.environment.network, self.process, address)
        return cast("ManagerClient", client)

    def another_manager(self) -> ManagerClient | None:
        """Return another manager that may lead by now."""
        try:
            self.environment.disk.ask(self.host, "list")
            of_leader = self.environment.disk.terms[-1:]
        except SharedDirectoryError:
            of_leader = []
        address = next_address(self.given, of_leader, self._manager)
        if address is None:
            return None
        self._manager = address
        return self.client(address)

    def read_presence(self, _: str) -> str:
        """Read the manager's presence file, as the agent's shared directory."""
        self.environment.disk.ask(self.host, "read")
        return ""

    # Its training, as the node sees it

    def look(self) -> None:
        """Note how far the running attempt has come."""
        training, running = self.flow.current, self.agent.running
        if training is not None and running is not None and training.wait is not None:
            done = training.steps_now
            running.stepped(done, training.stepped_at(done))

    def save_if_due(self) -> None:
        """Let the running attempt decide whether a snapshot is due."""
        training, running = self.flow.current, self.agent.running
        # If it is to end, it does so at the end of its step, which is already scheduled.
        if training is None or running is None or running.cancelled or running.to_save:
            return
        if self.flow.snapshot_due_at_seconds <= self.environment.clock.now_seconds:
            training.look_up()

    def see(self, what: What, *attempts: AttemptId, term: int = 0) -> None:
        """Show an action to the observer, and how far the running attempt had come by then."""
        action = WorkerAction(self, what, self.environment.clock.now_seconds, attempts, term)
        running, training = self.agent.running, self.flow.current
        if running is not None:
            steps = max(running.steps_done, training.steps_now if training is not None else 0)
            action.own_steps = steps - running.steps_before
            action.steps_left = running.steps_total - steps
        self.environment.observer.working(action)
