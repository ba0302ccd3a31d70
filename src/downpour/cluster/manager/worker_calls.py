"""Handles workers' calls: registrations, heartbeats, and reports about attempts."""

from __future__ import annotations

import logging
import secrets

from downpour.base.errors import (
    DownpourError,
    IncompatiblePeer,
    Refused,
    SharedDirectoryError,
    SpecError,
)
from downpour.base.labels import checked_labels
from downpour.base.states import FailureKind
from downpour.base.values import AttemptId, NumericClass, Snapshot, Update
from downpour.base.version import VERSION
from downpour.cluster.manager.claims import check_snapshot, check_update, check_work, credible
from downpour.cluster.manager.connection_monitor import ConnectionMonitor
from downpour.cluster.manager.driver import Driver
from downpour.cluster.manager.options import ManagerOptions
from downpour.cluster.manager.roster import Roster, membership_log
from downpour.cluster.manager.workspace import misses_dataset
from downpour.cluster.manager.workspaces import Workspaces
from downpour.core.node.manager import heartbeat_reply
from downpour.core.scheduler import events as on
from downpour.files.store import SharedDirectory
from downpour.files.store.leaders import Leader
from downpour.files.store.presence import Presence
from downpour.network.rpc import PROTOCOL, Address, Trust, WorkerClient
from downpour.network.rpc.messages import (
    Heartbeat,
    HeartbeatReply,
    ManagerInfo,
    Registered,
    Registration,
)

log = logging.getLogger(__name__)

_NAME_CHARACTERS_MAX = 64


class WorkerCalls:
    """Handles the calls of workers over a driver."""

    def __init__(
        self,
        options: ManagerOptions,
        trust: Trust,
        shared: SharedDirectory,
        driver: Driver,
        spaces: Workspaces,
        roster: Roster,
        leader: Leader,
    ) -> None:
        self._options = options
        self._trust = trust
        self._leader = leader
        self._shared = shared
        self._driver = driver
        self._spaces = spaces
        self._roster = roster
        self._connection_monitor = ConnectionMonitor(roster, trust, self._lose)
        self._numeric_class: NumericClass | None = None
        self._presence = secrets.token_hex(16)
        self._announced: Presence | None = None

    def announce(self) -> None:
        """Publish the file whose content proves that a worker sees the same folder."""
        self._announced = self._shared.announce(self._presence)

    def withdraw(self) -> None:
        """Remove the presence file."""
        if self._announced is not None:
            self._announced.withdraw()

    def warm_up(self) -> None:
        """Import torch, which takes 1 to 3 s, so that the first submission need not wait for it."""
        import downpour.cluster.manager.global_model  # noqa: F401 - for what it imports
        from downpour.learning.training.numeric_class import numeric_class

        self._numeric_class = numeric_class("cpu")

    def describe(self) -> ManagerInfo:
        """Return the facts that a worker must know before it registers."""
        return ManagerInfo(
            protocol=PROTOCOL,
            version=VERSION,
            presence_file=self._announced.name if self._announced is not None else "",
            heartbeat_seconds=self._options.heartbeat_seconds,
            patience=self._options.patience,
            term=self._leader.term,
        )

    def register_worker(self, registration: Registration) -> Registered:
        """Register a worker, after checking its version, its shared directory and its address."""
        self._check(registration)
        address = Address(registration.host, registration.port)
        client = WorkerClient(address, trust=self._trust)
        try:
            # Call it back before we enter it. Otherwise a worker that we cannot call would get a
            # task and then be lost.
            _call_back(client, registration.name)
        except DownpourError:
            client.close()
            raise
        # Enter it before the event, because the assignments that follow look up the address here.
        worker = self._roster.enter(registration, client)
        self._warn_of_mixture(worker, registration)
        joined = on.WorkerJoined(
            at_seconds=self._now,
            worker=worker,
            running=registration.running,
            labels=registration.labels,
        )
        self._driver.post(joined).result()
        # Note it now, not at the first heartbeat: if the worker dies in between, this connection
        # ends.
        self._connection_monitor.heard(worker)
        membership_log.info("%s joined from %s (%s)", worker, address, registration.numeric_class)
        return Registered(worker=worker)

    def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatReply:
        """Note that a worker is alive; the reply names attempts that it should stop."""
        self._connection_monitor.heard(heartbeat.worker)
        self._roster.note_differences(heartbeat.worker, heartbeat.differs)
        event = on.HeartbeatReceived(
            at_seconds=self._now,
            worker=heartbeat.worker,
            running=credible(heartbeat.running),
            system=heartbeat.system,
            process=heartbeat.process,
        )
        # We don't wait for it, because the manager journals nothing of a heartbeat. The driver
        # takes it in before it answers the next question in the queue.
        self._driver.post(event)
        worker, running = heartbeat.worker, heartbeat.running
        answer = self._driver.ask(
            lambda core: heartbeat_reply(
                core, worker, running, can_call=self._roster.get(worker) is not None
            )
        )
        return HeartbeatReply(**answer._asdict())

    def report_update(self, worker: str, attempt: AttemptId, update: Update) -> None:
        """Accept an update; when this returns, the update counts or the manager doesn't need it."""
        check_update(attempt, update)
        self._driver.ask(lambda core: check_work(core, attempt, update))
        event = on.UpdatePublished(
            at_seconds=self._now, worker=worker, attempt=attempt, update=update
        )
        self._driver.post(event).result()

    def report_failure(
        self, worker: str, attempt: AttemptId, kind: FailureKind, reason: str
    ) -> None:
        """Note that an attempt has failed; a dataset that is gone is not the attempt's fault."""
        space = self._spaces.get(attempt.experiment)
        if kind is FailureKind.STORE and space is not None and misses_dataset(space, reason):
            log.warning("%s: preparing the dataset again: %s", attempt.experiment, reason)
            kind = FailureKind.DATASET
        event = on.AttemptFailed(
            at_seconds=self._now, worker=worker, attempt=attempt, failure=kind, reason=reason
        )
        self._driver.post(event).result()

    def report_hand_over(self, worker: str, attempt: AttemptId, snapshot: Snapshot) -> None:
        """Accept an attempt's last snapshot; when this returns, another worker can continue it."""
        check_snapshot(attempt, snapshot)
        event = on.HandedOver(
            at_seconds=self._now, worker=worker, attempt=attempt, snapshot=snapshot
        )
        self._driver.post(event).result()

    def leave(self, worker: str, reason: str) -> None:
        """Unregister a worker."""
        self._driver.post(
            on.WorkerLeft(at_seconds=self._now, worker=worker, reason=reason)
        ).result()

    def connection_ended(self) -> None:
        """Check whether the worker behind this thread's ended connection is dead."""
        self._connection_monitor.connection_ended()

    def _lose(self, worker: str, reason: str) -> None:
        log.info("%s is lost: %s", worker, reason)
        self._driver.post(on.WorkerLost(at_seconds=self._now, worker=worker, reason=reason))

    @property
    def _now(self) -> float:
        return self._driver.now_seconds

    def _check(self, registration: Registration) -> None:
        if registration.protocol != PROTOCOL:
            raise IncompatiblePeer(
                f"the manager runs downpour {VERSION} (protocol {PROTOCOL}), the worker "
                f"{registration.version} (protocol {registration.protocol}): install the same "
                "version on both"
            )
        name = registration.name
        if not (name.isprintable() and 1 <= len(name) <= _NAME_CHARACTERS_MAX):
            accepted = f"1 to {_NAME_CHARACTERS_MAX} printable characters"
            raise SpecError("name", name, accepted)
        checked_labels(registration.labels)
        # Compare bytes, because `compare_digest` raises TypeError for text that is not ASCII.
        if not secrets.compare_digest(registration.presence.encode(), self._presence.encode()):
            raise SharedDirectoryError(
                self._shared.where, "is not the folder that the worker sees under its --shared"
            )

    def _warn_of_mixture(self, worker: str, registration: Registration) -> None:
        """Warn if a worker computes other bits than the rest, which makes runs unrepeatable."""
        for other in filter(None, map(self._roster.get, self._roster.names())):
            if other.registration.numeric_class != registration.numeric_class:
                theirs, its = other.registration.numeric_class, registration.numeric_class
                log.warning("%s computes with %s, others with %s", worker, its, theirs)
                return


def _call_back(client: WorkerClient, name: str) -> None:
    """Raise Refused unless the worker of that name answers at its address."""
    accepted = "it must be an address at which the manager reaches this worker"
    try:
        answered = client.ping().name
    except DownpourError as error:
        reason = f"the manager cannot call back at {client.address} ({error})"
        raise Refused("advertise", f"{reason}; {accepted}") from None
    if answered != name:
        raise Refused("advertise", f"{answered} answers at {client.address}; {accepted}")
