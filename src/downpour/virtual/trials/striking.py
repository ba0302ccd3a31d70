"""Applies a plan's faults to a simulated cluster, and ends temporary ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, cast

from downpour.base.states import FailureKind
from downpour.core.scheduler import Scheduler
from downpour.files.records.recovery import replay
from downpour.virtual.faults.faults import Fault, FaultKind
from downpour.virtual.faults.plan import Plan
from downpour.virtual.simulated.attempt import Phase
from downpour.virtual.simulated.client import SimulatedClient
from downpour.virtual.simulated.clock import Clock
from downpour.virtual.simulated.disk import Damage, Disk
from downpour.virtual.simulated.environment import Environment
from downpour.virtual.simulated.manager import DeathPoint, SimulatedManager
from downpour.virtual.simulated.network import HEARS_NOTHING, Network
from downpour.virtual.simulated.troubles import AWAY, Operation, Trouble
from downpour.virtual.simulated.worker import SimulatedWorker

_LOCK_SECONDS = 5.0
"""How long the server keeps the lock of a machine that has died or that it does not hear."""
_DISK_SLOWER = 20.0
_CLIENT = "client"

Ends = Iterable[tuple[str, str]]
"""Pairs of hosts: messages from the first to the second."""


class Stricken(Protocol):
    """The cluster that faults strike."""

    clock: Clock
    network: Network
    disk: Disk
    environment: Environment
    client: SimulatedClient
    managers: dict[str, SimulatedManager]
    workers: dict[str, SimulatedWorker]

    def stays_away(self, host: str, seconds: float) -> None:
        """Let the next process that ends on a host restart only after some seconds."""
        ...

    def double(self, name: str, twin: str) -> SimulatedWorker:
        """Start another worker with the same name."""
        ...


class Striking:
    """Applies faults; calls `struck` for each one that has found its target."""

    def __init__(self, cluster: Stricken, plan: Plan) -> None:
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
                cluster.stays_away(manager.host, fault.seconds)
                manager.crash("")
            case FaultKind.MANAGER_DIES_AT:
                manager.die_at = cast("DeathPoint", fault.detail)
                cluster.clock.after(fault.seconds, self._spare, manager)
            case FaultKind.MANAGER_MACHINE_DIES:
                cluster.stays_away(manager.host, fault.seconds)
                manager.crash("with its machine", machine_for_seconds=_LOCK_SECONDS)
            case FaultKind.DAMAGED_MEANWHILE:
                cluster.stays_away(manager.host, fault.seconds)
                manager.crash("")
                what, _, name = fault.detail.rpartition(" of ")
                self._damage(cast("Damage", what), name)
            case FaultKind.MANAGER_STANDS_STILL:
                manager.stand_still(fault.seconds)
            case FaultKind.MANAGER_STOPS:
                manager.stop()
            case FaultKind.PREPARATION_FAILS:
                manager.runner.cannot_prepare = fault.detail
            case _:
                once = fault.seconds * (1 if fault.number % 2 else -1)
                manager.skew_seconds += fault.amount or once

    def _spare(self, manager: SimulatedManager) -> None:
        manager.die_at = ""

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
                cluster.stays_away(worker.host, fault.seconds)
                worker.crash("", with_machine=fault.kind is FaultKind.WORKER_MACHINE_DIES)
            case FaultKind.WORKER_DIES_AT:
                cluster.stays_away(worker.host, fault.seconds)
                worker.training.dies_at = cast("Phase", fault.detail)
            case FaultKind.WORKER_STANDS_STILL:
                worker.stand_still(fault.seconds)
            case FaultKind.WORKER_LEAVES:
                cluster.stays_away(worker.host, fault.seconds)
                worker.leave()
            case FaultKind.WORKER_DRAINS:
                cluster.stays_away(worker.host, fault.seconds)
                cluster.client.drain(worker.host)
            case FaultKind.WORKER_DOUBLED:
                twin = cluster.double(fault.target, f"{worker.host}'")
                cluster.clock.after(fault.seconds, twin.crash, "again")
            case FaultKind.CONNECTIONS_END:
                cluster.network.hang_up(worker)
            case FaultKind.UPDATE_DAMAGED:
                worker.training.damages_next += 1
            case _:
                worker.training.fails_next.append(fault.detail or FailureKind.NON_FINITE)

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
            case (
                FaultKind.MANAGER_CUT_OFF
                | FaultKind.MANAGER_ISOLATED
                | FaultKind.MANAGER_FLAPS
                | FaultKind.WORKER_CUT_OFF
                | FaultKind.WORKER_ISOLATED
                | FaultKind.WORKER_FLAPS
            ):
                return [pair for other in others for pair in ((host, other), (other, host))]
            case FaultKind.LINK_CUT:
                return [(host, fault.detail), (fault.detail, host)]
            case FaultKind.MANAGER_HALF_CUT_OFF | FaultKind.WORKER_HALF_CUT_OFF:
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
        self._cluster.clock.after(fault.seconds, _forget, table, fault.target)
        return True

    # All processes

    def _strike_all(self, fault: Fault) -> None:
        network, disk = self._cluster.network.state, self._cluster.disk.state
        match fault.kind:
            case FaultKind.MESSAGES_LOST:
                network.lost = fault.share
            case FaultKind.MESSAGES_DOUBLED:
                network.doubled = fault.share
            case FaultKind.MESSAGES_HELD_UP:
                network.held_up, network.held_up_seconds = fault.share, fault.seconds
            case FaultKind.DISK_SLOW:
                disk.slower = fault.amount or _DISK_SLOWER
            case FaultKind.DISK_STALE:
                disk.stale_seconds = fault.seconds
            case FaultKind.DISK_AWAY:
                disk.troubles.append(AWAY)
            case FaultKind.DISK_REFUSES:
                disk.troubles.append(_trouble(fault))
            case FaultKind.DISK_REFUSES_ONCE:
                disk.once.append(_trouble(fault))
            case FaultKind.LOCK_LOST:
                self._cluster.disk.lose_lock()
            case _:
                self._cluster.client.cancel(self._plan.specs[0][0])
        self._cluster.clock.after(fault.seconds, self._calm, fault)

    def _calm(self, fault: Fault) -> None:
        network, disk = self._cluster.network.state, self._cluster.disk.state
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


_WITHOUT_FOLDER = {
    FaultKind.MANAGER_WITHOUT_FOLDER,
    FaultKind.MANAGER_ISOLATED,
    FaultKind.WORKER_WITHOUT_FOLDER,
    FaultKind.WORKER_ISOLATED,
}


def _forget(table: dict[str, float], host: str) -> None:
    table.pop(host, None)


def _trouble(fault: Fault) -> Trouble:
    error, operation, *host = fault.detail.split()
    return Trouble(error=error, operation=cast("Operation", operation), host="".join(host))
