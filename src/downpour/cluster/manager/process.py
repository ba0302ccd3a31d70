"""The manager as a process: its parts, its start, and the order in which it shuts down."""

import logging
import os
import secrets
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Timer

import psutil

from downpour.base.errors import DownpourError
from downpour.cluster.manager import driver, observations, status, takeover, work, workspace
from downpour.cluster.manager.command_runner import CommandRunner, OnDeath
from downpour.cluster.manager.service import ManagerHandler, manager_metrics
from downpour.cluster.options import ManagerOptions
from downpour.core.node.manager import LOOK_SECONDS
from downpour.core.scheduler import Scheduler
from downpour.core.scheduler import events as on
from downpour.files.log_places import old_logs_removed
from downpour.files.process_log import kept_log
from downpour.files.store import SharedDirectory
from downpour.files.store.lease import Leader, Lease
from downpour.files.store.shared_directory import open_location, seen_location
from downpour.host import process
from downpour.host.child import command_for
from downpour.host.paths import known_secrets
from downpour.network.metrics import MetricsEndpoint
from downpour.network.rpc import Address, Trust, frames, serve_manager
from downpour.network.rpc.server import listen
from downpour.predictor import pretrained
from downpour.predictor.forecaster import Forecaster

log = logging.getLogger(__name__)

_MANY_WORKERS = 2000
"""More than a manager serves well; see `docs/how-to/many-workers.md`."""
_WARM_UP_SECONDS = 5.0
"""A manager that continues experiments imports torch after this delay, if nothing else did."""
AWAY_SECONDS = 60.0
"""How long the shared directory may be gone or full, at a patience of 1. Workers retry for five
minutes (`cluster/worker/task_runner.py`), so that their work outlasts a restart of the manager."""


@dataclass(eq=False, kw_only=True)
class Manager:
    """A running manager, as `start_manager` makes it; `close` stops it.

    `leader` is its term, `recovered` has the experiments to continue, and `closing` ends all
    retries.
    """

    options: ManagerOptions
    on_death: OnDeath
    trust: Trust
    forecaster: Forecaster
    shared: SharedDirectory
    closing: Event
    lease: Lease
    archive: takeover.Archive
    leader: Leader
    recovered: takeover.RecoveredState
    listener: socket.socket
    metrics_listener: socket.socket | None

    def __post_init__(self) -> None:
        """Make its parts."""
        options, archive = self.options, self.archive
        away_seconds = AWAY_SECONDS * options.patience
        self._driver = driver.Driver(
            self.recovered.core,
            patience_seconds=away_seconds,
            on_death=self.on_death,
            check_leader=self._raise_unless_it_leads,
        )
        self._roster = status.Roster()
        self._spaces = workspace.Workspaces(self.recovered.spaces, self._fail, away_seconds)
        self._runner = CommandRunner(
            self._spaces,
            self._roster,
            self._driver,
            process.Lanes(),
            partial(work.prepare_after_rehearsal, options),
            archive.end,
            term=self.leader.term,
            on_death=self.on_death,
        )
        command = command_for(options.on_event)
        self._announcer = observations.ManagerAnnouncer(command) if command is not None else None
        self._sink = driver.ManagerSink(
            self._spaces,
            self._roster,
            archive,
            self._runner,
            self.forecaster,
            self._announcer,
            self.recovered.next_order,
        )
        self._service = ManagerHandler(
            options,
            self.trust,
            self.shared,
            self._driver,
            self._spaces,
            self._roster,
            self.leader,
            archive,
        )
        self._server = serve_manager(
            self._service,
            options.host,
            options.port,
            trust=self.trust,
            on_end=self._service.connection_ended,
            listener=self.listener,
        )
        self._metrics = self._metrics_endpoint()
        # Delay the import of torch, because it takes 1 to 3 s and slows down every other thread.
        # The workers of continued experiments should come back first.
        self._warming_up = Timer(_WARM_UP_SECONDS, self._service.warm_up)

    def _metrics_endpoint(self) -> MetricsEndpoint | None:
        if self.metrics_listener is None:
            return None
        counters, term = self._sink.observations.counters, self.leader.term
        source = partial(manager_metrics, self._driver, self.archive, counters, self._spaces, term)
        return MetricsEndpoint(source, self.metrics_listener, self.trust)

    def start(self) -> None:
        """Continue earlier managers' experiments, and serve."""
        self._service.announce()
        # Start the driver before the server, because calls wait for the driver's answers.
        self._driver.start(self._sink, self.recovered.core.resume())
        self._server.start()
        if self._metrics is not None:
            self._metrics.start()
        # Start the timer last, so that a failed start leaves no thread behind, and callers get
        # answers before the import takes the processor. With nothing to continue, no worker waits
        # for this manager, but the first submission would wait for the import.
        if self.recovered.spaces:
            self._warming_up.start()
        else:
            self._service.warm_up()

    @property
    def address(self) -> Address:
        """The address at which the manager serves."""
        return self._server.address

    @property
    def metrics_url(self) -> str:
        """The URL of the metrics; empty if they are not served."""
        return self._metrics.url if self._metrics is not None else ""

    def close(self) -> None:
        """Stop serving and wait for running work; an embedded manager cancels its experiments."""
        # Stop the callers first, then the work that they wait for. End long polls before the server
        # stops, or it would wait for them. Release the lock last, when nothing writes any more.
        self._warming_up.cancel()
        if self._metrics is not None:
            self._metrics.close()
        self.closing.set()
        self._driver.end_waits()
        if self.options.embedded:
            with suppress(DownpourError):
                self._service.cancel_all("the run was stopped")
        self._server.stop()
        self._driver.stop()
        self._runner.close()
        self._roster.close()
        if self._announcer is not None:
            self._announcer.close()
        self._service.withdraw()
        if not self.options.embedded:
            self.lease.release()
        # `cancel` does not stop an import that has begun.
        if self._warming_up.is_alive():
            self._warming_up.join()

    def look_around(self) -> None:
        """Check the shared directory for changes by other processes; called once a second.

        The manager ends if a later one has taken over, which happens if a network file system has
        lost its lock. It marks experiments whose folder is gone as held up.
        """
        self._spaces.look()
        if self._announcer is not None:
            self._announcer.look(lambda: self._service.status("", 0, 0.0))
        if not self.options.embedded and not self.lease.is_leader:
            self.on_death(self.lease.replaced())

    def _fail(self, experiment: str, reason: str) -> None:
        now = self._driver.now_seconds
        self._driver.post(on.EffectFailed(at_seconds=now, experiment=experiment, reason=reason))

    def _raise_unless_it_leads(self) -> None:
        # If the manager cannot see the terms, it waits as long as for a commit. Another manager may
        # lead by now, and its term would void our later entries, so we must not acknowledge them.
        if not self.options.embedded and not self._driver.insist(self.lease.leads):
            raise self.lease.replaced()


def start_manager(options: ManagerOptions, on_death: OnDeath = lambda _: None) -> Manager:
    """Open the shared directory, continue its experiments, bind the port and serve.

    The term begins before the journals are read: a former leader that knows nothing of this manager
    may still write, but its entries do not count. `on_death` gets the reason if the manager fails.
    """
    trust = Trust.load(options.credentials)
    predictor = pretrained(Path(options.predictor) if options.predictor else None)
    closing = Event()
    shared = replace(
        open_location(options.shared, create=True),
        patience_seconds=options.patience_seconds * options.patience,
        away_seconds=AWAY_SECONDS * options.patience,
        sleep=closing.wait,  # so that closing the manager ends all retries
    )
    lease, archive = Lease(shared), takeover.Archive(shared)
    if not options.embedded:
        lease.acquire(
            wait=options.successor,
            while_waiting=lambda holder: log.warning(
                "waiting for the leading manager to end: %s", holder or "it left no address"
            ),
        )
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
        manager = Manager(
            options=options,
            on_death=on_death,
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
        manager.start()
        undoing.pop_all()
    return manager


def _continued(
    options: ManagerOptions,
    shared: SharedDirectory,
    lease: Lease,
    archive: takeover.Archive,
    address: Address,
) -> tuple[Leader, takeover.RecoveredState]:
    """Begin a term, and continue the experiments that earlier managers left."""
    core = Scheduler(options.patience, secret=secrets.token_bytes(16))
    if not options.embedded:
        leader = lease.claim(*_called_at(address))
        check = partial(lease.check, shared.retry_policy)
        return leader, takeover.Takeover(shared, core, leader, archive, check).recover()
    leader = Leader(
        term=options.restarts + 1,
        addresses=(str(address),),
        hostname=socket.gethostname(),
        pid=os.getpid(),
        cluster=options.run,
    )
    if not options.restarts:
        return leader, takeover.RecoveredState(core)
    return leader, takeover.Takeover(shared, core, leader, archive).recover_run()


def run_manager(
    options: ManagerOptions,
    ready: Callable[[Address], None],
    measured: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve until a signal; calls `ready` with the address, `measured` with the metrics' URL."""
    # A SimpleQueue, because its `put` is reentrant: a signal handler that sets an Event deadlocks
    # if it interrupts this thread while this thread holds the Event's lock.
    stop = SimpleQueue[DownpourError | None]()

    process.allow_many_descriptors()
    shared, secrets = seen_location(options.shared), known_secrets(options.credentials)
    with kept_log(shared, "manager", secrets), old_logs_removed(shared):
        manager = start_manager(options, stop.put)
        try:
            process.on_leaving(lambda _: stop.put(None))
            process.on_interrupt(lambda: stop.put(None))
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
    workers = process.connections_allowed() // process.CONNECTIONS_OF_A_WORKER
    level = logging.INFO if workers >= _MANY_WORKERS else logging.WARNING
    said = "at most %d workers can connect, because this process may open %d files"
    log.log(level, said, workers, process.descriptors_allowed())


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
