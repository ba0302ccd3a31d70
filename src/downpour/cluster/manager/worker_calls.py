"""Handles workers' calls: registrations, heartbeats, and reports about attempts.

A report decides the average's inputs and weights, and the files to remove later. So each file that
a report names must belong to its attempt, and the manager compares every number that follows from
the shard with its own. It refuses a false claim before the core sees it, and removes no file.
"""

import logging
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from downpour.base import VERSION, errors, values
from downpour.base.states import FailureKind
from downpour.cluster.manager.driver import Driver
from downpour.cluster.manager.status import ConnectionMonitor, Roster, membership_log
from downpour.cluster.manager.workspace import Workspaces, misses_dataset
from downpour.cluster.options import ManagerOptions
from downpour.core.node.manager import heartbeat_reply
from downpour.core.scheduler import Scheduler
from downpour.core.scheduler import events as on
from downpour.files.store import SharedDirectory, layout
from downpour.files.store.layout import AttemptKind, AttemptName
from downpour.files.store.lease import Leader
from downpour.files.store.shared_directory import Presence
from downpour.learning.training.epoch_order import part_of
from downpour.network.rpc import PROTOCOL, Address, Trust, WorkerClient, messages
from downpour.record.record import journaled_lines
from downpour.record.record_lines import BlocksReadLine

log = logging.getLogger(__name__)


def check_update(attempt: values.AttemptId, update: values.Update) -> None:
    """Raise Refused if an update names files of other attempts, or its loss is not finite."""
    _check_file("update.file", "update", attempt, update.file)
    if update.optimizer_state is not None:
        _check_file("update.optimizer_state", "optimizer", attempt, update.optimizer_state)
    if not math.isfinite(update.loss):
        raise errors.Refused("update.loss", f"{update.loss} is not a finite number")


def check_work(core: Scheduler, attempt: values.AttemptId, update: values.Update) -> None:
    """Raise Refused if an update does not fit the assigned work; runs in the driver's thread."""
    assigned = core.state.find(attempt)
    if assigned is None:
        return  # too late: the round has ended, and the core ignores the update
    spec = assigned.experiment.spec
    task, number = assigned.task, spec.rounds_before + attempt.round
    part = part_of(spec, task.samples, number, task.share)
    # By a false number, one defective worker could change the weights of all updates.
    for name, claimed, known in (
        ("samples", update.samples, part.samples),
        ("steps", update.steps, part.steps),
    ):
        if claimed != known:
            raise errors.Refused(f"update.{name}", f"{claimed}, but {attempt} has {known}")


def credible(running: Sequence[values.Progress]) -> tuple[values.Progress, ...]:
    """Return a heartbeat's progress, without snapshots that are files of other attempts."""
    # We don't refuse a heartbeat, because a worker whose heartbeats fail counts as lost.
    return tuple(
        replace(progress, snapshot=None)
        if progress.snapshot is not None
        and not _is_of(progress.attempt, "snapshot", progress.snapshot.file)
        else progress
        for progress in running
    )


def _check_file(
    field: str, kind: AttemptKind, attempt: values.AttemptId, file: values.PublishedFile
) -> None:
    if not _is_of(attempt, kind, file):
        raise errors.Refused(field, f"{file.name!r} is not the {kind} file of {attempt}")


def _is_of(attempt: values.AttemptId, kind: AttemptKind, file: values.PublishedFile) -> bool:
    parsed = layout.parse_name(file.name)
    if not isinstance(parsed, AttemptName):
        return False
    # We don't compare the experiment: a bare name refers to the folder of the attempt's own.
    numbers = parsed.round, parsed.shard, parsed.attempt
    return (parsed.kind, *numbers) == (kind, attempt.round, attempt.shard, attempt.attempt)


def _blocks_read(folder: Path) -> dict[str, tuple[str, str]]:
    """Return the digests of blocks that earlier managers have journaled, and who read each."""
    return {
        block: (digest, line.worker)
        for _, line in journaled_lines(folder, b'"kind":"blocks-read"')
        if isinstance(line, BlocksReadLine)
        for block, digest in line.digests.items()
    }


_NAME_CHARACTERS_MAX = 64


@dataclass(eq=False)
class WorkerCalls:
    """Handles the calls of workers over a driver."""

    options: ManagerOptions
    trust: Trust
    shared: SharedDirectory
    driver: Driver
    spaces: Workspaces
    roster: Roster
    leader: Leader
    _numeric_class: values.NumericClass | None = field(init=False, default=None)
    _presence: str = field(init=False, default_factory=partial(secrets.token_hex, 16))
    _announced: Presence | None = field(init=False, default=None)
    _blocks: dict[str, dict[str, tuple[str, str]]] = field(init=False, default_factory=dict)
    _blocks_lock: Lock = field(init=False, default_factory=Lock)

    def __post_init__(self) -> None:
        """Watch the connections."""
        self._connection_monitor = ConnectionMonitor(self.roster, self._connect, self._lose)

    def announce(self) -> None:
        """Publish the file whose content proves that a worker sees the same folder."""
        self._announced = self.shared.announce(self._presence)

    def withdraw(self) -> None:
        """Remove the presence file."""
        if self._announced is not None:
            self._announced.withdraw()

    def warm_up(self) -> None:
        """Import torch, which takes 1 to 3 s, so that the first submission need not wait for it."""
        import downpour.cluster.manager.global_model  # noqa: F401 - for what it imports
        from downpour.learning.numerics import numeric_class

        self._numeric_class = numeric_class("cpu")

    def describe(self) -> messages.ManagerInfo:
        """Return the facts that a worker must know before it registers."""
        return messages.ManagerInfo(
            protocol=PROTOCOL,
            version=VERSION,
            presence_file=self._announced.name if self._announced is not None else "",
            heartbeat_seconds=self.options.heartbeat_seconds,
            patience=self.options.patience,
            term=self.leader.term,
        )

    def register_worker(self, registration: messages.Registration) -> messages.Registered:
        """Register a worker, after checking its version, its shared directory and its address."""
        self._check(registration)
        address = Address(registration.host, registration.port)
        client = self._connect(address)
        try:
            # First, or a worker that we cannot call would get a task and then be lost.
            _call_back(client, registration.name)
        except errors.DownpourError:
            client.close()
            raise
        # Enter it before the event, because the assignments that follow look up the address here.
        worker = self.roster.enter(registration, client)
        self._warn_of_mixture(worker, registration)
        joined = on.WorkerJoined(
            at_seconds=self._now,
            worker=worker,
            running=registration.running,
            labels=registration.labels,
            device=registration.trains_on,
            numeric_class=str(registration.numeric_class),
            processor_class=str(registration.processor_class or ""),
            # A restarted container has the same host and number, but another port.
            process=f"{registration.hostname} {registration.port} {registration.pid}",
        )
        self.driver.post(joined).result()
        # Not at the first heartbeat: if the worker dies in between, this connection ends.
        self._connection_monitor.heard(worker)
        membership_log.info("%s joined from %s (%s)", worker, address, registration.numeric_class)
        return messages.Registered(worker=worker)

    def heartbeat(self, heartbeat: messages.Heartbeat) -> messages.HeartbeatReply:
        """Note that a worker is alive; the reply names attempts that it should stop."""
        self._connection_monitor.heard(heartbeat.worker)
        self.roster.note_differences(heartbeat.worker, heartbeat.differs)
        event = on.HeartbeatReceived(
            at_seconds=self._now,
            worker=heartbeat.worker,
            running=credible(heartbeat.running),
            system=heartbeat.system,
            process=heartbeat.process,
        )
        # We don't wait for it, because the manager journals nothing of a heartbeat. The driver
        # takes it in before it answers the next question in the queue.
        self.driver.post(event)
        worker, running = heartbeat.worker, heartbeat.running
        answer = self.driver.ask(
            lambda core: heartbeat_reply(
                core, worker, running, can_call=self.roster.get(worker) is not None
            )
        )
        return messages.HeartbeatReply(**answer._asdict())

    def report_update(self, worker: str, attempt: values.AttemptId, update: values.Update) -> None:
        """Accept an update; when this returns, the update counts or the manager doesn't need it."""
        check_update(attempt, update)
        self._check_work(attempt, update)
        event = on.UpdatePublished(
            at_seconds=self._now, worker=worker, attempt=attempt, update=update
        )
        self.driver.post(event).result()

    def report_failure(
        self, worker: str, attempt: values.AttemptId, kind: FailureKind, reason: str
    ) -> None:
        """Note that an attempt has failed; a dataset that is gone is not the attempt's fault."""
        space = self.spaces.get(attempt.experiment)
        if kind is FailureKind.STORE and space is not None and misses_dataset(space, reason):
            log.warning("%s: preparing the dataset again: %s", attempt.experiment, reason)
            kind = FailureKind.DATASET
        event = on.AttemptFailed(
            at_seconds=self._now, worker=worker, attempt=attempt, failure=kind, reason=reason
        )
        self.driver.post(event).result()

    def report_hand_over(
        self, worker: str, attempt: values.AttemptId, snapshot: values.Snapshot
    ) -> None:
        """Accept an attempt's last snapshot; when this returns, another worker can continue it."""
        _check_file("snapshot.file", "snapshot", attempt, snapshot.file)
        event = on.HandedOver(
            at_seconds=self._now, worker=worker, attempt=attempt, snapshot=snapshot
        )
        self.driver.post(event).result()

    def report_blocks(
        self, worker: str, experiment: str, blocks: tuple[messages.BlockDigest, ...]
    ) -> tuple[str, ...]:
        """Record which blocks a worker has read; returns the ones that another read differently."""
        space = self.spaces.get(experiment)
        if space is None or space.concluded:
            return ()
        with self._blocks_lock:
            if experiment not in self._blocks:
                self._blocks = {experiment: _blocks_read(space.folder)}
            first = self._blocks[experiment]
            fresh = {one.block: one.digest for one in blocks if one.block not in first}
            first |= {block: (digest, worker) for block, digest in fresh.items()}
            other = [one.block for one in blocks if first[one.block][0] != one.digest]
        if fresh:
            read = on.BlocksRead(
                at_seconds=self._now, experiment=experiment, worker=worker, digests=fresh
            )
            self.driver.post(read)
        return tuple(f"{block}, which {first[block][1]} read first" for block in other)

    def leave(self, worker: str, reason: str) -> None:
        """Unregister a worker."""
        event = on.WorkerLeft(at_seconds=self._now, worker=worker, reason=reason)
        self.driver.post(event).result()

    def connection_ended(self) -> None:
        """Check whether the worker behind this thread's ended connection is dead."""
        self._connection_monitor.connection_ended()

    def _connect(self, address: Address, **timeouts: Any) -> WorkerClient:
        return WorkerClient(address, trust=self.trust, **timeouts)

    def _lose(self, worker: str, reason: str) -> None:
        self.driver.post(on.WorkerLost(at_seconds=self._now, worker=worker, reason=reason))

    @property
    def _now(self) -> float:
        return self.driver.now_seconds

    def _check(self, registration: messages.Registration) -> None:
        if registration.protocol != PROTOCOL:
            raise errors.IncompatiblePeer(
                f"the manager runs downpour {VERSION} (protocol {PROTOCOL}), the worker "
                f"{registration.version} (protocol {registration.protocol}): install the same "
                "version on both"
            )
        name = registration.name
        if not (name.isprintable() and 1 <= len(name) <= _NAME_CHARACTERS_MAX):
            accepted = f"1 to {_NAME_CHARACTERS_MAX} printable characters"
            raise errors.SpecError("name", name, accepted)
        values.checked_labels(registration.labels)
        # Compare bytes, because `compare_digest` raises TypeError for text that is not ASCII.
        if not secrets.compare_digest(registration.presence.encode(), self._presence.encode()):
            reason = "is not the folder that the worker sees under its --shared"
            raise errors.SharedDirectoryError(self.shared.where, reason)

    def _check_work(self, attempt: values.AttemptId, update: values.Update) -> None:
        self.driver.ask(lambda core: check_work(core, attempt, update))

    def _warn_of_mixture(self, worker: str, registration: messages.Registration) -> None:
        """Warn if a worker computes other bits than the rest, which makes runs unrepeatable."""
        for other in filter(None, map(self.roster.get, self.roster.names())):
            if other.registration.numeric_class != registration.numeric_class:
                theirs, its = other.registration.numeric_class, registration.numeric_class
                log.warning("%s computes with %s, others with %s", worker, its, theirs)
                return


def _call_back(client: WorkerClient, name: str) -> None:
    """Raise Refused unless the worker of that name answers at its address."""
    accepted = "it must be an address at which the manager reaches this worker"
    try:
        answered = client.ping().name
    except errors.DownpourError as error:
        reason = f"the manager cannot call back at {client.address} ({error})"
        raise errors.Refused("advertise", f"{reason}; {accepted}") from None
    if answered != name:
        raise errors.Refused("advertise", f"{answered} answers at {client.address}; {accepted}")
