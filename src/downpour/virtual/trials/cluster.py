"""Starts the processes of a simulated cluster, and restarts processes that end."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from downpour.core.node.step_loop import StepLoop
from downpour.core.node.worker import WorkerNode
from downpour.predictor import Predictor
from downpour.virtual.checks.happenings import Happenings
from downpour.virtual.faults.plan import Plan
from downpour.virtual.simulated.client import SimulatedClient
from downpour.virtual.simulated.clock import Clock
from downpour.virtual.simulated.disk import Disk
from downpour.virtual.simulated.environment import Environment, Observer
from downpour.virtual.simulated.machines import Machines, RandomMachines
from downpour.virtual.simulated.manager import SimulatedManager
from downpour.virtual.simulated.network import Network
from downpour.virtual.simulated.worker import NodeClass, SimulatedWorker
from downpour.virtual.trials.striking import Striking

_CLIENT_AT_SECONDS = 0.3

ManagerClass = Callable[[Environment, str, Callable[[str], None]], SimulatedManager]


class Cluster:
    """Managers, workers and a client that share one network and one directory.

    Args:
        plan: which processes there are, and what to train.
        observer: makes the observer of the run from the directory.
        tell: takes lines of the story.
        manager_class: the class of managers; tests plant defects in it.
        machines: the workers' machines; without it, random ones with the plan's timings.
        predictor: makes a manager's predictor; without it, managers don't forecast.
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
        self._striking = Striking(self, plan)

    def report_to(self, happenings: Happenings) -> None:
        """Report events that no observer sees: faults, messages and refusals."""
        self._striking.struck = happenings.struck
        self.network.carried, self.network.refused = happenings.carried, happenings.refused

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
            self.clock.after(fault.at_seconds, self._striking.strike, fault)

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

    # What the faults of a plan need (`trials/striking.py`)

    def stays_away(self, host: str, seconds: float) -> None:
        """Let the next process that ends on a host restart only after some seconds."""
        self._away[host] = seconds

    def double(self, name: str, twin: str) -> SimulatedWorker:
        """Start another worker with the same name."""
        self._start_worker(name, twin)
        return self.workers[twin]
