"""The manager as a process: opens the shared directory, serves, and runs until it is stopped."""

from __future__ import annotations

import logging
import os
import resource
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Timer

import psutil

from downpour.base.errors import DownpourError, SharedDirectoryError
from downpour.cluster.manager.archive import Archive
from downpour.cluster.manager.command_runner import CommandRunner
from downpour.cluster.manager.driver import Driver
from downpour.cluster.manager.metrics import ManagerMetrics
from downpour.cluster.manager.options import ManagerOptions
from downpour.cluster.manager.roster import Roster
from downpour.cluster.manager.service import ManagerHandler
from downpour.cluster.manager.takeover import RecoveredState, recover, recover_run
from downpour.core.node.manager import LOOK_SECONDS
from downpour.core.scheduler import Scheduler, SchedulerOptions
from downpour.files.store import SharedDirectory
from downpour.files.store.leaders import Leader
from downpour.files.store.lease import Lease
from downpour.files.store.location import open_location
from downpour.host.signals import on_interrupt, on_leaving
from downpour.network.metrics import MetricsEndpoint
from downpour.network.rpc import Address, Trust, serve_manager
from downpour.predictor import pretrained
from downpour.predictor.forecaster import Forecaster

log = logging.getLogger(__name__)

# Far more than the 16,384 connections that the server takes (`network/rpc/server.py`); the soft
# limit of many systems, 1024, is less.
_FILES = 65536
_WARM_UP_SECONDS = 5.0
"""The delay after which a manager that continues experiments imports torch, if nothing did yet."""
_AWAY_SECONDS = 60.0
"""How long the shared directory may be gone or full, at a patience of 1. Workers retry for five
minutes (`cluster/worker/task_runner.py`), so that what they have trained outlasts a restart of the
manager."""


class Manager:
    """A running manager; `close` stops it. Tests run it in their own process."""

    def __init__(
        self, options: ManagerOptions, on_death: Callable[[DownpourError], None] = lambda _: None
    ) -> None:
        """Open the shared directory, continue its experiments, bind the port and serve.

        Args:
            options: where to listen, and what to use.
            on_death: called with the reason if the manager ends by itself.

        Raises:
            SharedDirectoryError: the folder cannot be used, or another manager leads it.
            SpecError: a port is in use, a credential is wrong, the port would be open to other
                machines without credentials, or the predictor's file is invalid.
        """
        trust = Trust.load(options.credentials)
        predictor = pretrained(Path(options.predictor) if options.predictor else None)
        self._closing = Event()
        shared = self._shared_directory(options)
        self._options = options
        self._on_death = on_death
        self._lease = Lease(shared)
        if not options.embedded:
            self._lease.acquire(wait=options.successor, while_waiting=_say_who_serves)
        core = Scheduler(SchedulerOptions(patience=options.patience))
        self._roster = Roster()
        self._archive = Archive(shared)
        self._runner, self._driver = self._driven(core, options, Forecaster(predictor, always=True))
        self._service = ManagerHandler(
            options, trust, shared, self._driver, self._runner, self._roster, self._archive
        )
        # Later, because the import of torch takes 1 to 3 s and slows down every other thread:
        # workers of an experiment that continues come back first.
        self._warming_up = Timer(_WARM_UP_SECONDS, self._service.warm_up)
        with ExitStack() as undoing:
            undoing.callback(self._lease.release)
            # Bound before the term begins, because the term's file names the port; it serves later.
            self._server = serve_manager(
                self._service,
                options.host,
                options.port,
                trust=trust,
                on_end=self._service.connection_ended,
            )
            undoing.callback(self._server.stop)
            self._metrics = self._measured(options, trust)
            undoing.callback(self._close_metrics)
            self._begin(shared, core)
            undoing.pop_all()

    def _driven(
        self, core: Scheduler, options: ManagerOptions, forecaster: Forecaster
    ) -> tuple[CommandRunner, Driver]:
        """Make what carries commands out, and what drives the core."""
        away_seconds = _AWAY_SECONDS * options.patience
        runner = CommandRunner(
            self._roster,
            forecaster,
            Path(options.data_dir) if options.data_dir else None,
            self._archive,
            rehearses=not options.embedded,
            gone_seconds=away_seconds,
            on_death=self._on_death,
        )
        driver = Driver(
            core,
            runner,
            patience_seconds=away_seconds,
            on_death=self._on_death,
            check_leader=self._raise_if_replaced,
        )
        runner.attach(driver.post, lambda: driver.now_seconds)
        return runner, driver

    def _shared_directory(self, options: ManagerOptions) -> SharedDirectory:
        """Open it, with the options' timeouts; closing the manager ends its retries."""
        return replace(
            open_location(options.shared, create=True),
            patience_seconds=options.patience_seconds * options.patience,
            away_seconds=_AWAY_SECONDS * options.patience,
            sleep=self._closing.wait,
        )

    def _measured(self, options: ManagerOptions, trust: Trust) -> MetricsEndpoint | None:
        """Make the endpoint of metrics, if there is a port for it; it does not serve yet."""
        if options.metrics_port is None:
            return None
        source = ManagerMetrics(self._driver, self._runner, self._archive)
        return MetricsEndpoint(source, self.address.host, options.metrics_port, trust)

    def _begin(self, shared: SharedDirectory, core: Scheduler) -> None:
        """Become the leader, continue the experiments that were left, and serve.

        The term begins before the journals are read. A former leader that does not know that it was
        replaced may still write, but what it writes after that does not count.
        """
        leader, recovered = self._continued(shared, core)
        self._runner.take_up(recovered, leader)
        goes_on = bool(recovered.spaces)
        self._service.announce(leader)
        # Before the server: calls wait for answers that the driver's thread gives.
        self._driver.start(core.resume())
        self._server.start()
        if self._metrics is not None:
            self._metrics.start()
        # Last, so that a start that fails leaves no thread behind, and callers are answered before
        # the import takes the processor. Without anything to continue no worker waits for this
        # manager, and the first submission would wait for the import.
        if goes_on:
            self._warming_up.start()
        else:
            self._service.warm_up()

    def _continued(self, shared: SharedDirectory, core: Scheduler) -> tuple[Leader, RecoveredState]:
        """Begin a term, and continue what the managers before this one have left."""
        if not self._options.embedded:
            leader = self._lease.claim(*_called_at(self.address))
            return leader, recover(shared, core, leader, self._archive)
        leader = Leader(
            term=self._options.restarts + 1,
            addresses=(str(self.address),),
            hostname=socket.gethostname(),
            pid=os.getpid(),
            cluster=self._options.run,
        )
        if not self._options.restarts:
            return leader, RecoveredState(core)
        return leader, recover_run(shared, core, leader, self._archive)

    @property
    def address(self) -> Address:
        """The address at which the manager serves."""
        return self._server.address

    @property
    def metrics_url(self) -> str:
        """The URL of the metrics; empty if they are not served."""
        return self._metrics.url if self._metrics is not None else ""

    def close(self) -> None:
        """Stop serving and wait for what is running.

        The next manager continues the experiments; those of an embedded manager are cancelled.
        """
        # Callers first, then what they wait for: the waits of long polls end before the server
        # stops, or it would wait for them; the lock is released last, when nothing writes any more.
        self._warming_up.cancel()
        self._close_metrics()
        self._closing.set()
        self._driver.end_waits()
        if self._options.embedded:
            with suppress(DownpourError):
                self._service.cancel_all("the run was stopped")
        self._server.stop()
        self._driver.stop()
        self._runner.close()
        self._roster.close()
        self._service.withdraw()
        if not self._options.embedded:
            self._lease.release()
        # `cancel` does not stop an import that has begun.
        if self._warming_up.is_alive():
            self._warming_up.join()

    def _close_metrics(self) -> None:
        if self._metrics is not None:
            self._metrics.close()

    def look_around(self) -> None:
        """Check the shared directory for changes by other processes; called once a second.

        The manager ends if a later one has taken over, which happens where a network file system
        has lost its lock. Experiments whose folder was removed are marked as held up.
        """
        self._runner.look()
        try:
            self._raise_if_replaced()
        except SharedDirectoryError as error:
            self._on_death(error)

    def _raise_if_replaced(self) -> None:
        if not self._options.embedded and not self._lease.is_leader:
            reason = "another manager has taken over; this one ends"
            raise SharedDirectoryError(self._lease.root, reason)


def run_manager(
    options: ManagerOptions,
    ready: Callable[[Address], None],
    measured: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve until a signal ends it; calls `ready` with the address once the manager serves.

    If metrics are served, `measured` is then called with their URL.

    Raises:
        StoreError: the shared directory cannot be used any more; the next manager continues.
        FailStop: a defect has ended the manager; the next one continues from the journal.
        SpecError: as `Manager`.
    """
    # A SimpleQueue, because its `put` is reentrant: a signal handler that sets an Event deadlocks
    # if it interrupts this thread while that holds the Event's lock.
    stop = SimpleQueue[DownpourError | None]()

    _allow_many_files()
    manager = Manager(options, stop.put)
    try:
        on_leaving(lambda _: stop.put(None))
        on_interrupt(lambda: stop.put(None))
        log.info("manager serves at %s", manager.address)
        ready(manager.address)
        if manager.metrics_url:
            measured(manager.metrics_url)
        _wait(stop, manager)
    finally:
        manager.close()


def _wait(stop: SimpleQueue[DownpourError | None], manager: Manager) -> None:
    """Wait for a signal to stop; raises the reason if the manager has ended by itself."""
    while True:
        with suppress(Empty):
            error = stop.get(timeout=LOOK_SECONDS)
            if error is not None:
                raise error
            return
        manager.look_around()


def _say_who_serves(holder: Leader | None) -> None:
    log.warning("waiting for the leading manager to end: %s", holder or "it left no address")


def _called_at(address: Address) -> list[str]:
    """Return the addresses to announce: all of this machine's, if the manager listens on all."""
    if address.host not in {"0.0.0.0", "::"}:  # noqa: S104 - compared, not bound
        return [str(address)]
    # A socket on `::` takes IPv4 as well, where the system can do that (`network/rpc/server.py`).
    kinds = {socket.AF_INET} if address.host == "0.0.0.0" else {socket.AF_INET, socket.AF_INET6}  # noqa: S104
    interfaces = (one for several in psutil.net_if_addrs().values() for one in several)
    # Link-local addresses (with a %zone) mean something on this machine only.
    hosts = [one.address for one in interfaces if one.family in kinds and "%" not in one.address]
    outward = [Address(host, address.port) for host in hosts]
    return [str(one) for one in outward if not one.is_loopback]


def _allow_many_files() -> None:
    """Raise the limit of open files: a worker takes two descriptors, a waiting experiment one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
