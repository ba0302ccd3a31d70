"""The processes of a simulated cluster: starts them, restarts them, and brings the faults."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import cast

from downpour.core.node.step_loop import StepLoop
from downpour.core.node.worker import WorkerNode
from downpour.core.scheduler import Scheduler
from downpour.files.records.recovery import replay
from downpour.predictor import Predictor
from downpour.virtual.faults.faults import Fault, FaultKind
from downpour.virtual.faults.plan import Plan
from downpour.virtual.simulated.attempt import Phase
from downpour.virtual.simulated.client import SimulatedClient
from downpour.virtual.simulated.clock import Clock
from downpour.virtual.simulated.disk import Damage, Disk
from downpour.virtual.simulated.environment import Environment, Observer
from downpour.virtual.simulated.machines import Machines, RandomMachines
from downpour.virtual.simulated.manager import DeathPoint, SimulatedManager
from downpour.virtual.simulated.network import Network
from downpour.virtual.simulated.troubles import AWAY, Operation, Trouble
from downpour.virtual.simulated.worker import NodeClass, SimulatedWorker

_LOCK_SECONDS = 5.0
"""How long the server keeps the lock of a machine that has died."""
_DISK_SLOWER = 20.0
_CLIENT_AT_SECONDS = 0.3

ManagerClass = Callable[[Environment, str, Callable[[str], None]], SimulatedManager]


class Cluster:
    """Managers, workers and a client that share one network and one directory.

    Args:
        plan: which processes there are, and what to train.
        observer: makes the observer of the run, which is given the directory.
        tell: takes lines of the story.
        manager_class: the class of managers; tests plant defects in it.
        machines: the machines of workers; absent: drawn at random, by the plan's timings.
        predictor: makes a manager's predictor; absent: nothing is forecast.
        worker_node: makes the node of a worker; tests plant defects in it.
        step_loop: decides between the steps of a worker's task; tests plant defects in it.
    """

    def __init__(
        self,
        plan: Plan,
        observer: Callable[[Disk], Observer],
        tell: Callable[[str], None],
        manager_class: ManagerClass = SimulatedManager,
        machines: Machines | None = None,
        predictor: Callable[[], Predictor] | None = None,
        worker_node: NodeClass = WorkerNode,
        step_loop: type[StepLoop] = StepLoop,
    ) -> None:
        self.clock = Clock()
        random = Random(plan.seed)
        self.network = Network(self.clock, random, plan.timings.deadline_seconds)
        self.network.state.delay_seconds = plan.timings.network_seconds
        self.disk = Disk(self.clock, random, plan.timings.disk)
        self.observer = observer(self.disk)
        timings = plan.timings
        if machines is None:
            spreads = timings.worker_spread, timings.spread
            machines = RandomMachines(plan.workers, timings.task_seconds, *spreads, random)
        self.environment = Environment(
            clock=self.clock,
            random=random,
            network=self.network,
            disk=self.disk,
            timings=timings,
            machines=machines,
            observer=self.observer,
            tell=tell,
            predictor=predictor,
            policies=plan.policies,
        )
        self._plan = plan
        self._manager_class = manager_class
        self._worker_node = worker_node
        self._step_loop = step_loop
        self._away: dict[str, float] = {}
        self.managers: dict[str, SimulatedManager] = {}
        self.workers: dict[str, SimulatedWorker] = {}
        self.client = SimulatedClient(self.environment, list(plan.managers))

    def begin(self) -> None:
        """Start all processes, and schedule the plan's faults."""
        for host in self._plan.managers:
            self._start_manager(host)
        arrivals = [self.environment.random.random() for _ in self._plan.workers]
        if self._plan.in_order:
            arrivals.sort()
        for host, arrival in zip(self._plan.workers, arrivals, strict=True):
            self.clock.after(arrival, self._start_worker, host, host)
        for n, (experiment, spec) in enumerate(self._plan.specs):
            self.client.after(_CLIENT_AT_SECONDS * (n + 1), self.client.submit, experiment, spec)
        for fault in self._plan.faults:
            self.clock.after(fault.at_seconds, self._strike, fault)

    def _start_manager(self, host: str) -> None:
        manager = self.managers[host] = self._manager_class(
            self.environment, host, self._manager_died
        )
        manager.start()

    def _manager_died(self, host: str) -> None:
        seconds = self._away.pop(host, self.environment.timings.restart_seconds)
        self.clock.after(seconds, self._start_manager, host)

    def _start_worker(self, name: str, host: str) -> None:
        address = self._plan.managers[0]
        worker = self.workers[host] = SimulatedWorker(
            self.environment,
            name,
            host,
            address,
            self._worker_died,
            self._worker_node,
            self._step_loop,
        )
        worker.start()

    def _worker_died(self, worker: SimulatedWorker) -> None:
        if worker.host in self._plan.workers:
            seconds = self._away.pop(worker.host, self.environment.timings.restart_seconds)
            self.clock.after(seconds, self._start_worker, worker.host, worker.host)

    # What goes wrong

    def _strike(self, fault: Fault) -> None:
        self.environment.tell(f"[{fault.number}] {fault}")
        if fault.target in self.managers:
            self._strike_manager(fault, self.managers[fault.target])
        elif fault.target in self.workers:
            self._strike_worker(fault, self.workers[fault.target])
        elif not fault.target:
            self._strike_all(fault)

    def _strike_manager(self, fault: Fault, manager: SimulatedManager) -> None:
        match fault.kind:
            case FaultKind.MANAGER_DIES:
                self._away[manager.host] = fault.seconds
                manager.crash("")
            case FaultKind.MANAGER_DIES_AT:
                manager.die_at = cast("DeathPoint", fault.detail)
                self.clock.after(fault.seconds, self._spare_manager, manager)
            case FaultKind.MANAGER_MACHINE_DIES:
                self._away[manager.host] = fault.seconds
                manager.crash("with its machine", machine_for_seconds=_LOCK_SECONDS)
            case FaultKind.DAMAGED_MEANWHILE:
                self._away[manager.host] = fault.seconds
                manager.crash("")
                what, _, name = fault.detail.rpartition(" of ")
                self._damage(cast("Damage", what), name)
            case FaultKind.MANAGER_STANDS_STILL:
                manager.stand_still(fault.seconds)
            case FaultKind.MANAGER_STOPS:
                manager.stop()
            case FaultKind.CLOCK_JUMPS:
                manager.skew_seconds += fault.seconds * (1 if fault.number % 2 else -1)
            case _:
                self._cut(manager.host, [*self.workers, "client"], fault.seconds)

    def _damage(self, what: Damage, name: str) -> None:
        """Damage a file of an experiment that was acknowledged and has not ended."""
        core = Scheduler()
        replay(core, self.disk.stories())
        experiment = core.state.experiments.get(name) if name in self.client.acknowledged else None
        if experiment is not None and not experiment.life.state.ended:
            self.disk.damage(name, what)

    def _spare_manager(self, manager: SimulatedManager) -> None:
        manager.die_at = ""

    def _strike_worker(self, fault: Fault, worker: SimulatedWorker) -> None:
        match fault.kind:
            case FaultKind.WORKER_DIES:
                self._away[worker.host] = fault.seconds
                worker.crash("")
            case FaultKind.WORKER_DIES_AT:
                self._away[worker.host] = fault.seconds
                worker.training.dies_at = cast("Phase", fault.detail)
            case FaultKind.WORKER_STANDS_STILL:
                worker.stand_still(fault.seconds)
            case FaultKind.WORKER_LEAVES:
                self._away[worker.host] = fault.seconds
                worker.leave()
            case FaultKind.WORKER_DOUBLED:
                twin = f"{worker.host}'"
                self._start_worker(fault.target, twin)
                self.clock.after(fault.seconds, self.workers[twin].crash, "again")
            case FaultKind.CONNECTIONS_END:
                self.network.hang_up(worker)
            case FaultKind.UPDATE_DAMAGED:
                worker.training.damages_next += 1
            case FaultKind.ATTEMPT_FAILS:
                worker.training.fails_next += 1
            case _:
                self._cut(worker.host, list(self.managers), fault.seconds)

    def _strike_all(self, fault: Fault) -> None:
        network, disk = self.network.state, self.disk.state
        match fault.kind:
            case FaultKind.MESSAGES_LOST:
                network.lost = fault.share
            case FaultKind.MESSAGES_DOUBLED:
                network.doubled = fault.share
            case FaultKind.MESSAGES_HELD_UP:
                network.held_up, network.held_up_seconds = fault.share, fault.seconds
            case FaultKind.DISK_SLOW:
                disk.slower = _DISK_SLOWER
            case FaultKind.DISK_STALE:
                disk.stale_seconds = fault.seconds
            case FaultKind.DISK_AWAY:
                disk.troubles.append(AWAY)
            case FaultKind.DISK_REFUSES:
                disk.troubles.append(_trouble(fault))
            case FaultKind.DISK_REFUSES_ONCE:
                disk.once.append(_trouble(fault))
            case FaultKind.LOCK_LOST:
                self.disk.lose_lock()
            case _:
                self.client.cancel(self._plan.specs[0][0])
        self.clock.after(fault.seconds, self._calm, fault)

    def _calm(self, fault: Fault) -> None:
        network, disk = self.network.state, self.disk.state
        match fault.kind:
            case FaultKind.MESSAGES_LOST:
                network.lost = 0.0
            case FaultKind.MESSAGES_DOUBLED:
                network.doubled = 0.0
            case FaultKind.MESSAGES_HELD_UP:
                network.held_up = 0.0
            case FaultKind.DISK_SLOW:
                disk.slower = 1.0
            case FaultKind.DISK_STALE:
                disk.stale_seconds = 0.0
            case FaultKind.DISK_AWAY:
                disk.troubles.remove(AWAY)
            case FaultKind.DISK_REFUSES:
                disk.troubles.remove(_trouble(fault))
            case _:
                pass

    def _cut(self, host: str, others: list[str], seconds: float) -> None:
        for other in others:
            self.network.cut(host, other)
            self.clock.after(seconds, self.network.mend, host, other)


def _trouble(fault: Fault) -> Trouble:
    error, operation, *host = fault.detail.split()
    return Trouble(error=error, operation=cast("Operation", operation), host="".join(host))
