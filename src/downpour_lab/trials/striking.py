"""Applies a plan's faults to a simulated cluster, and ends temporary ones."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from functools import partial
from random import Random
from typing import cast

from downpour.base.states import FailureKind
from downpour.core.node.attempt import StepLoop
from downpour.core.node.worker import WorkerNode
from downpour.core.scheduler import Scheduler
from downpour.predictor import Predictor
from downpour.record.journal import replay
from downpour_lab.simulated.disk import AWAY, Damage, Disk, Operation, Trouble
from downpour_lab.simulated.environment import (
    Environment,
    Machines,
    Observer,
    RandomMachines,
    SimulatedClient,
)
from downpour_lab.simulated.manager import DeathPoint, SimulatedManager
from downpour_lab.simulated.threads import HEARS_NOTHING, Clock, Network
from downpour_lab.simulated.training import Phase, Wrong
from downpour_lab.simulated.worker import NodeClass, SimulatedWorker
from downpour_lab.trials.faults import Fault, FaultKind, of_kind
from downpour_lab.trials.plan import Plan
from downpour_lab.trials.promises import Happenings

_LOCK_SECONDS = 5.0
"""How long the server keeps the lock of a machine that has died or that it does not hear."""
_DISK_SLOWER = 20.0
_CLIENT = "client"

Ends = Iterable[tuple[str, str]]
"""Pairs of hosts: messages from the first to the second."""


class Striking:
    """Applies faults; calls `struck` for each one that has found its target."""

    def __init__(self, cluster: Cluster, plan: Plan) -> None:
        self.struck: Callable[[Fault], None] = lambda _: None
        self._cluster = cluster
        self._plan = plan

    def strike(self, fault: Fault) -> None:
        """Apply a fault; if it lasts, it ends on its own."""
        cluster = self._cluster
        cluster.environment.tell(f"[{fault.number}] {fault}")
        manager, worker = cluster.managers.get(fault.target), cluster.workers.get(fault.target)
        if fault.target and manager is None and worker is None:
            return
        self.struck(fault)
        if self._cut(fault) or self._impair(fault):
            return
        if fault.kind in _ENDS:
            cluster.away[fault.target] = fault.seconds
        if manager is not None:
            self._strike_manager(fault, manager)
        elif worker is not None:
            self._strike_worker(fault, worker)
        else:
            self._strike_all(fault)

    # Processes

    def _strike_manager(self, fault: Fault, manager: SimulatedManager) -> None:
        cluster = self._cluster
        match fault.kind:
            case FaultKind.MANAGER_DIES:
                manager.crash("")
            case FaultKind.MANAGER_DIES_AT:
                manager.die_at = cast("DeathPoint", fault.detail)
                cluster.clock.after(fault.seconds, setattr, manager, "die_at", "")
            case FaultKind.MANAGER_MACHINE_DIES:
                manager.crash("with its machine", machine_for_seconds=_LOCK_SECONDS)
            case FaultKind.DAMAGED_MEANWHILE:
                manager.crash("")
                what, _, name = fault.detail.rpartition(" of ")
                self._damage(cast("Damage", what), name)
            case FaultKind.MANAGER_STANDS_STILL:
                manager.stand_still(fault.seconds)
            case FaultKind.MANAGER_STOPS:
                manager.stop()
            case FaultKind.PREPARATION_FAILS:
                manager.preparation.next_failure = fault.detail
            case _:
                once = fault.seconds * (1 if fault.number % 2 else -1)
                manager.threads.skew_seconds += fault.amount or once

    def _damage(self, what: Damage, name: str) -> None:
        """Damage a file of an experiment that is acknowledged and has not ended."""
        disk, client = self._cluster.disk, self._cluster.client
        core = Scheduler()
        replay(core, disk.stories())
        experiment = core.state.experiments.get(name) if name in client.acknowledged else None
        if experiment is not None and not experiment.life.state.ended:
            disk.damage(name, what)

    def _strike_worker(self, fault: Fault, worker: SimulatedWorker) -> None:
        cluster = self._cluster
        match fault.kind:
            case FaultKind.WORKER_DIES | FaultKind.WORKER_MACHINE_DIES:
                worker.crash("", with_machine=fault.kind is FaultKind.WORKER_MACHINE_DIES)
            case FaultKind.WORKER_DIES_AT:
                worker.flow.dies_at = cast("Phase", fault.detail)
            case FaultKind.WORKER_STANDS_STILL:
                worker.process.stand_still(fault.seconds)
            case FaultKind.WORKER_LEAVES:
                worker.leave()
            case FaultKind.WORKER_DRAINS:
                cluster.client.begin(cluster.client.drain, worker.host)
            case FaultKind.WORKER_DOUBLED:
                twin = cluster.double(fault.target, f"{worker.host}'")
                cluster.clock.after(fault.seconds, twin.crash, "again")
            case FaultKind.WORKER_WRONG:
                worker.flow.computes_wrong = cast("Wrong", fault.detail)
                cluster.disk.computing_wrong.add(worker.machine)
            case FaultKind.CONNECTIONS_END:
                cluster.network.hang_up(worker.process)
            case FaultKind.UPDATE_DAMAGED:
                worker.flow.damages_next += 1
            case _:
                worker.flow.fails_next.append(fault.detail or FailureKind.NON_FINITE)

    # The network

    def _cut(self, fault: Fault) -> bool:
        """Cut links if the fault does so; return whether it does."""
        ends = [*self._ends(fault)]
        if ends:
            pause = fault.amount * (1 - fault.share) if fault.amount else 0.0
            until = self._cluster.clock.now_seconds + fault.seconds
            self._cut_for(ends, fault.amount * fault.share or fault.seconds, pause, until)
        if fault.kind in _WITHOUT_FOLDER:
            self._take_folder(fault)
        return bool(ends) or fault.kind in _WITHOUT_FOLDER

    def _ends(self, fault: Fault) -> Ends:
        """Return the links that a fault cuts, by direction."""
        host, managers = fault.target, list(self._cluster.managers)
        others = [*self._cluster.workers, _CLIENT] if host in managers else managers
        match fault.kind:
            case kind if kind in _CUT_OFF:
                return [pair for other in others for pair in ((host, other), (other, host))]
            case FaultKind.LINK_CUT:
                return [(host, fault.detail), (fault.detail, host)]
            case kind if kind in _HALF:
                hears_nothing = fault.detail == HEARS_NOTHING
                return [(each, host) if hears_nothing else (host, each) for each in others]
            case _:
                return []

    def _cut_for(self, ends: Ends, seconds: float, pause: float, until: float) -> None:
        """Cut links for some seconds; with a pause, repeat that until some moment."""
        clock, network = self._cluster.clock, self._cluster.network
        for source, target in ends:
            network.cut(source, target)
            clock.after(seconds, network.mend, source, target)
        if pause and clock.now_seconds + seconds + pause < until:
            clock.after(seconds + pause, self._cut_for, ends, seconds, pause, until)

    # The shared directory, for one host

    def _take_folder(self, fault: Fault) -> None:
        """Let every operation of a host fail; a manager's lock ends when its lease does."""
        disk, clock = self._cluster.disk, self._cluster.clock
        gone = Trouble(host=fault.target)
        disk.state.troubles.append(gone)
        clock.after(fault.seconds, disk.state.troubles.remove, gone)
        holder = self._cluster.managers.get(fault.target)
        if holder is not None and fault.seconds > _LOCK_SECONDS:
            clock.after(_LOCK_SECONDS, disk.lose_lock, holder)

    def _impair(self, fault: Fault) -> bool:
        """Slow a host down, or lose its messages; return whether the fault does that."""
        network, disk = self._cluster.network.state, self._cluster.disk.state
        table, value = {
            FaultKind.HOST_FAR: (network.far, fault.amount),
            FaultKind.HOST_LOSES: (network.lost_at, fault.share),
            FaultKind.HOST_THROTTLED: (disk.slower_at, fault.amount),
        }.get(fault.kind, (None, 0.0))
        if table is None:
            return False
        table[fault.target] = value
        self._cluster.clock.after(fault.seconds, table.pop, fault.target, None)
        return True

    # All processes

    def _strike_all(self, fault: Fault) -> None:
        disk, client = self._cluster.disk, self._cluster.client
        match fault.kind:
            case FaultKind.DISK_AWAY | FaultKind.DISK_REFUSES:
                trouble = AWAY if fault.kind is FaultKind.DISK_AWAY else _trouble(fault)
                disk.state.troubles.append(trouble)
                self._cluster.clock.after(fault.seconds, disk.state.troubles.remove, trouble)
            case FaultKind.DISK_REFUSES_ONCE:
                disk.state.once.append(_trouble(fault))
            case FaultKind.LOCK_LOST:
                disk.lose_lock()
            case FaultKind.CANCELLED:
                client.begin(client.cancel, self._plan.specs[0][0])
            case FaultKind.PAUSED:
                client.begin(client.pause, self._plan.specs[0][0], fault.seconds)
            case _:
                self._change(fault)

    def _change(self, fault: Fault) -> None:
        """Change the state of the network or of the directory, as long as the fault lasts."""
        network, disk = self._cluster.network.state, self._cluster.disk.state
        if fault.kind is FaultKind.MESSAGES_HELD_UP:
            network.held_up_seconds = fault.seconds
        state, name, value = {
            FaultKind.MESSAGES_LOST: (network, "lost", fault.share),
            FaultKind.MESSAGES_DOUBLED: (network, "doubled", fault.share),
            FaultKind.MESSAGES_HELD_UP: (network, "held_up", fault.share),
            FaultKind.DISK_SLOW: (disk, "slower", fault.amount or _DISK_SLOWER),
            FaultKind.DISK_STALE: (disk, "stale_seconds", fault.seconds),
        }[fault.kind]
        usual = getattr(type(state)(), name)
        setattr(state, name, value)
        self._cluster.clock.after(fault.seconds, setattr, state, name, usual)


_ENDS = of_kind("_DIES", "WORKER_DIES_AT", "_LEAVES", "_DRAINS", "DAMAGED_MEANWHILE")
"""The kinds whose `seconds` are the time until the process is back."""
_HALF = {FaultKind.MANAGER_HALF_CUT_OFF, FaultKind.WORKER_HALF_CUT_OFF}
_CUT_OFF = of_kind("_CUT_OFF", "_ISOLATED", "_FLAPS") - _HALF
_WITHOUT_FOLDER = of_kind("_WITHOUT_FOLDER", "_ISOLATED")


def _trouble(fault: Fault) -> Trouble:
    error, operation, *host = fault.detail.split()
    return Trouble(error=error, operation=cast("Operation", operation), host="".join(host))


_CLIENT_AT_SECONDS = 0.3
_STEPS_BETWEEN_LOOKS = 5_000

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
        random, timings = Random(plan.seed), plan.timings
        self.network = Network(self.clock, random, timings.deadline_seconds)
        self.network.state.delay_seconds = timings.network_seconds
        self.disk = Disk(self.clock, random, timings.disk)
        self.environment = Environment(
            clock=self.clock,
            random=random,
            network=self.network,
            disk=self.disk,
            timings=timings,
            machines=machines or RandomMachines(plan.workers, timings, random),
            observer=observer(self.disk),
            tell=tell,
            predictor=predictor,
            policies=plan.policies,
        )
        self._plan = plan
        self._manager_class = manager_class
        self._worker_node = worker_node
        self._step_loop = step_loop
        self.away: dict[str, float] = {}
        """After how many seconds the next process that ends on a host restarts, if not as usual."""
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
            submit = partial(self.client.begin, self.client.submit, experiment, spec)
            self.client.after(_CLIENT_AT_SECONDS * (n + 1), submit)
        for fault in self._plan.faults:
            self.clock.after(fault.at_seconds, self._striking.strike, fault)

    def run(self, has_ended: Callable[[], bool], look: Callable[[], None]) -> None:
        """Begin, and take steps until the run has ended; call `look` from time to time."""
        self.begin()
        gc.disable()  # the collector would visit all messages under way, and free none of them
        try:
            while not has_ended():
                for _ in range(_STEPS_BETWEEN_LOOKS):
                    if has_ended() or not self.clock.step():
                        break
                look()
        finally:
            gc.enable()
            self.clock.end()

    def _start_manager(self, host: str) -> None:
        manager = self.managers[host] = self._manager_class(
            self.environment, host, self._manager_died
        )
        manager.start()

    def _manager_died(self, host: str) -> None:
        seconds = self.away.pop(host, self.environment.timings.restart_seconds)
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
            seconds = self.away.pop(worker.host, self.environment.timings.restart_seconds)
            self.clock.after(seconds, self._start_worker, worker.host, worker.host)

    def double(self, name: str, twin: str) -> SimulatedWorker:
        """Start another worker with the same name."""
        self._start_worker(name, twin)
        return self.workers[twin]
