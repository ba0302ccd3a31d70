"""The manager as a process: opens the shared directory, serves, and runs until a signal."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event

import psutil

from downpour.base.errors import DownpourError
from downpour.cluster.manager.archive import Archive
from downpour.cluster.manager.manager import AWAY_SECONDS, Begun, Manager, OnDeath
from downpour.cluster.manager.options import ManagerOptions
from downpour.cluster.manager.takeover import RecoveredState, Takeover
from downpour.core.node.manager import LOOK_SECONDS
from downpour.core.scheduler import Scheduler, SchedulerOptions
from downpour.files.logs.log_places import old_logs_removed
from downpour.files.logs.process_log import kept_log
from downpour.files.store import SharedDirectory
from downpour.files.store.lease import Leader, Lease
from downpour.files.store.shared_directory import open_location, seen_location
from downpour.host.paths import known_secrets
from downpour.host.process import (
    CONNECTIONS_OF_A_WORKER,
    allow_many_descriptors,
    connections_allowed,
    descriptors_allowed,
    on_interrupt,
    on_leaving,
)
from downpour.network.rpc import Address, Trust, frames
from downpour.network.rpc.server import listen
from downpour.predictor import pretrained
from downpour.predictor.forecaster import Forecaster

log = logging.getLogger(__name__)

_MANY_WORKERS = 2000
"""More than a manager serves well; see `docs/how-to/many-workers.md`."""


def start_manager(options: ManagerOptions, on_death: OnDeath = lambda _: None) -> Manager:
    """Open the shared directory, continue its experiments, bind the port and serve.

    The term begins before the journals are read. A former leader that does not know of this manager
    may still write, but its later entries do not count. `on_death` is called with the reason if the
    manager ends on its own.
    """
    trust = Trust.load(options.credentials)
    predictor = pretrained(Path(options.predictor) if options.predictor else None)
    closing = Event()
    shared = _shared_directory(options, closing)
    lease, archive = Lease(shared), Archive(shared)
    if not options.embedded:
        lease.acquire(wait=options.successor, while_waiting=_say_who_serves)
    if not frames.is_accelerated():
        log.warning("%s: %s", frames.NOT_ACCELERATED, frames.ACCELERATE)
    with ExitStack() as undoing:
        undoing.callback(lease.release)
        # Listen before the term begins, because the term's file names the port; we serve later.
        listener = undoing.enter_context(listen(options.host, options.port, trust))
        address = Address(*listener.getsockname()[:2])
        metrics_listener = None
        if options.metrics_port is not None:
            metrics_listener = undoing.enter_context(
                listen(address.host, options.metrics_port, trust, "metrics_port")
            )
        leader, recovered = _continued(options, shared, lease, archive, address)
        begun = Begun(
            trust=trust,
            forecaster=Forecaster(predictor, always=True),
            shared=shared,
            closing=closing,
            lease=lease,
            archive=archive,
            leader=leader,
            recovered=recovered,
            listener=listener,
            metrics_listener=metrics_listener,
        )
        manager = Manager(options, begun, on_death)
        manager.start()
        undoing.pop_all()
    return manager


def _shared_directory(options: ManagerOptions, closing: Event) -> SharedDirectory:
    """Open it with the options' timeouts; closing the manager ends its retries."""
    return replace(
        open_location(options.shared, create=True),
        patience_seconds=options.patience_seconds * options.patience,
        away_seconds=AWAY_SECONDS * options.patience,
        sleep=closing.wait,
    )


def _continued(
    options: ManagerOptions,
    shared: SharedDirectory,
    lease: Lease,
    archive: Archive,
    address: Address,
) -> tuple[Leader, RecoveredState]:
    """Begin a term, and continue the experiments that earlier managers left."""
    core = Scheduler(SchedulerOptions(patience=options.patience))
    if not options.embedded:
        leader = lease.claim(*_called_at(address))
        check = partial(lease.check, shared.retry_policy)
        return leader, Takeover(shared, core, leader, archive, check).recover()
    leader = Leader(
        term=options.restarts + 1,
        addresses=(str(address),),
        hostname=socket.gethostname(),
        pid=os.getpid(),
        cluster=options.run,
    )
    if not options.restarts:
        return leader, RecoveredState(core)
    return leader, Takeover(shared, core, leader, archive).recover_run()


def run_manager(
    options: ManagerOptions,
    ready: Callable[[Address], None],
    measured: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve until a signal comes; calls `ready` with the address once the manager serves.

    If the manager serves metrics, this then calls `measured` with their URL.
    """
    # A SimpleQueue, because its `put` is reentrant: a signal handler that sets an Event deadlocks
    # if it interrupts this thread while this thread holds the Event's lock.
    stop = SimpleQueue[DownpourError | None]()

    allow_many_descriptors()
    shared, secrets = seen_location(options.shared), known_secrets(options.credentials)
    with kept_log(shared, "manager", secrets), old_logs_removed(shared):
        manager = start_manager(options, stop.put)
        try:
            on_leaving(lambda _: stop.put(None))
            on_interrupt(lambda: stop.put(None))
            log.info("manager serves at %s", manager.address)
            _say_limit()
            ready(manager.address)
            if manager.metrics_url:
                measured(manager.metrics_url)
            _wait(stop, manager)
        finally:
            manager.close()


def _wait(stop: SimpleQueue[DownpourError | None], manager: Manager) -> None:
    """Wait for a signal to stop; raises the reason if the manager has ended on its own."""
    while True:
        with suppress(Empty):
            error = stop.get(timeout=LOOK_SECONDS)
            if error is not None:
                raise error
            return
        manager.look_around()


def _say_limit() -> None:
    """Say how many workers can connect; in a terminal only if they are few."""
    workers = connections_allowed() // CONNECTIONS_OF_A_WORKER
    level = logging.INFO if workers >= _MANY_WORKERS else logging.WARNING
    said = "at most %d workers can connect, because this process may open %d files"
    log.log(level, said, workers, descriptors_allowed())


def _say_who_serves(holder: Leader | None) -> None:
    log.warning("waiting for the leading manager to end: %s", holder or "it left no address")


def _called_at(address: Address) -> list[str]:
    """Return the addresses to announce: all of this machine's, if the manager listens on all."""
    if address.host not in {"0.0.0.0", "::"}:  # noqa: S104 - compared, not bound
        return [str(address)]
    # A socket on `::` also takes IPv4 if the system supports that (`network/rpc/server.py`).
    kinds = {socket.AF_INET} if address.host == "0.0.0.0" else {socket.AF_INET, socket.AF_INET6}  # noqa: S104
    interfaces = (one for several in psutil.net_if_addrs().values() for one in several)
    # Link-local addresses (with a %zone) mean something on this machine only.
    hosts = [one.address for one in interfaces if one.family in kinds and "%" not in one.address]
    own = [Address(host, address.port) for host in hosts]
    # On a machine without a network, the callers are here, too.
    return [str(one) for one in own if not one.is_loopback] or list(map(str, own))
