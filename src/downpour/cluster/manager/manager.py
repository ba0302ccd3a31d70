"""A running manager: its parts, its start, and the order in which it shuts down."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Event, Timer

from downpour.base.errors import DownpourError
from downpour.cluster.manager.archive import Archive
from downpour.cluster.manager.command_runner import CommandRunner
from downpour.cluster.manager.driver import Driver, ManagerSink
from downpour.cluster.manager.metrics import manager_metrics
from downpour.cluster.manager.observations import ManagerAnnouncer
from downpour.cluster.manager.options import ManagerOptions
from downpour.cluster.manager.roster import Roster
from downpour.cluster.manager.service import ManagerHandler
from downpour.cluster.manager.takeover import RecoveredState
from downpour.cluster.manager.work import prepare_after_rehearsal
from downpour.cluster.manager.workspace import Workspaces
from downpour.cluster.threads import Lanes
from downpour.core.scheduler import events as on
from downpour.files.store import SharedDirectory
from downpour.files.store.lease import Leader, Lease
from downpour.host.event_command import command_for
from downpour.network.metrics import MetricsEndpoint
from downpour.network.rpc import Address, Trust, serve_manager
from downpour.predictor.forecaster import Forecaster

_WARM_UP_SECONDS = 5.0
"""A manager that continues experiments imports torch after this delay, if nothing else did."""
AWAY_SECONDS = 60.0
"""How long the shared directory may be gone or full, at a patience of 1. Workers retry for five
minutes (`cluster/worker/task_runner.py`), so that their work outlasts a restart of the manager."""
OnDeath = Callable[[DownpourError], None]


@dataclass(frozen=True, slots=True)
class Begun:
    """A manager before it serves: its term, the experiments to continue, and its address."""

    trust: Trust
    forecaster: Forecaster
    shared: SharedDirectory
    closing: Event
    lease: Lease
    archive: Archive
    leader: Leader
    recovered: RecoveredState
    listener: socket.socket
    metrics_listener: socket.socket | None


class Manager:
    """A running manager, as `start_manager` makes it; `close` stops it."""

    def __init__(self, options: ManagerOptions, begun: Begun, on_death: OnDeath) -> None:
        self._options = options
        self._begun = begun
        self._on_death = on_death
        archive, away_seconds = begun.archive, AWAY_SECONDS * options.patience
        self._driver = Driver(
            begun.recovered.core,
            patience_seconds=away_seconds,
            on_death=on_death,
            check_leader=self._raise_unless_it_leads,
        )
        self._roster = Roster()
        self._spaces = Workspaces(begun.recovered.spaces, self._fail, away_seconds)
        self._runner = CommandRunner(
            self._spaces,
            self._roster,
            self._driver,
            Lanes(),
            partial(prepare_after_rehearsal, options),
            archive.end,
            term=begun.leader.term,
            on_death=on_death,
        )
        command = command_for(options.on_event)
        self._announcer = ManagerAnnouncer(command) if command is not None else None
        self._sink = ManagerSink(
            self._spaces,
            self._roster,
            archive,
            self._runner,
            begun.forecaster,
            self._announcer,
            begun.recovered.next_order,
        )
        self._service = ManagerHandler(
            options,
            begun.trust,
            begun.shared,
            self._driver,
            self._spaces,
            self._roster,
            archive,
            begun.leader,
        )
        self._server = serve_manager(
            self._service,
            options.host,
            options.port,
            trust=begun.trust,
            on_end=self._service.connection_ended,
            listener=begun.listener,
        )
        self._metrics = self._metrics_endpoint()
        # Delay the import of torch, because it takes 1 to 3 s and slows down every other thread.
        # The workers of continued experiments should come back first.
        self._warming_up = Timer(_WARM_UP_SECONDS, self._service.warm_up)

    def _metrics_endpoint(self) -> MetricsEndpoint | None:
        begun, counters = self._begun, self._sink.observations.counters
        if begun.metrics_listener is None:
            return None
        source = partial(
            manager_metrics, self._driver, begun.archive, counters, self._spaces, begun.leader.term
        )
        return MetricsEndpoint(source, begun.metrics_listener, begun.trust)

    def start(self) -> None:
        """Continue earlier managers' experiments, and serve."""
        self._service.announce()
        # Start the driver before the server, because calls wait for answers from the driver's
        # thread.
        self._driver.start(self._sink, self._begun.recovered.core.resume())
        self._server.start()
        if self._metrics is not None:
            self._metrics.start()
        # Start the timer last, so that a failed start leaves no thread behind, and callers get
        # answers before the import takes the processor. With nothing to continue, no worker waits
        # for this manager, but the first submission would wait for the import.
        if self._begun.recovered.spaces:
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
        """Stop serving and wait for running work.

        The next manager continues the experiments; an embedded manager cancels its own.
        """
        # Stop the callers first, then the work that they wait for. End long polls before the server
        # stops, or it would wait for them. Release the lock last, when nothing writes any more.
        self._warming_up.cancel()
        if self._metrics is not None:
            self._metrics.close()
        self._begun.closing.set()
        self._driver.end_waits()
        if self._options.embedded:
            with suppress(DownpourError):
                self._service.cancel_all("the run was stopped")
        self._server.stop()
        self._driver.stop()
        self._runner.close()
        self._roster.close()
        if self._announcer is not None:
            self._announcer.close()
        self._service.withdraw()
        if not self._options.embedded:
            self._begun.lease.release()
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
        if not self._options.embedded and not self._begun.lease.is_leader:
            self._on_death(self._begun.lease.replaced())

    def _fail(self, experiment: str, reason: str) -> None:
        now = self._driver.now_seconds
        self._driver.post(on.EffectFailed(at_seconds=now, experiment=experiment, reason=reason))

    def _raise_unless_it_leads(self) -> None:
        # If the manager cannot see the terms, it waits as long as for a commit. Another manager may
        # hold the lock by now, and its term would void our later journal entries. So this manager
        # must not acknowledge them.
        if not self._options.embedded and not self._driver.insist(self._begun.lease.leads):
            raise self._begun.lease.replaced()
