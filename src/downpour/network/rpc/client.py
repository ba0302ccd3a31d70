"""Clients of a manager and of a worker: values go in, values come out.

The rest of the program calls these. Each method is one call over the network with its own deadline.
Every call is safe to repeat, and threads may share a client. `Peer.call` lists the errors; callers
never see Thrift's own.
"""

from __future__ import annotations

import secrets
from types import ModuleType, NoneType
from typing import Any, Self, TypeVar

from downpour.base.errors import IncompatiblePeer
from downpour.base.states import FailureKind
from downpour.base.values import AttemptId, Snapshot, Update
from downpour.network.rpc.connection import Peer
from downpour.network.rpc.generated import Manager, Worker
from downpour.network.rpc.messages import (
    PAGE_EXPERIMENTS_MAX,
    ExperimentSummary,
    Heartbeat,
    HeartbeatReply,
    ManagerInfo,
    RecordPage,
    Registered,
    Registration,
    Status,
    TaskMessage,
    WorkerInfo,
)
from downpour.network.rpc.trust import OPEN, Address, Trust
from downpour.network.rpc.wire import FieldError, from_wire, to_wire

CALL_SECONDS = 10.0
"""The deadline of a call, unless a client has another."""
_SUBMIT_SECONDS = 50.0
"""Added to the deadline: a manager that has just taken over may have to import torch first."""

_Answer = TypeVar("_Answer")


class _Client:
    """The common part of both clients: a peer, a deadline, and the conversion of messages.

    Args:
        address: where the service answers.
        trust: this side's credentials, and its demands on the service.
        timeout_seconds: the deadline of each call, not counting the time that we ask the peer to
            wait.
        connect_seconds: the limit for opening a connection.
        patience_seconds: how long to retry a call while no process answers; 0: don't.
        connections_max: calls in flight at a time; further ones wait, within their deadline.
    """

    _service: ModuleType

    def __init__(
        self,
        address: Address,
        *,
        trust: Trust = OPEN,
        timeout_seconds: float = CALL_SECONDS,
        connect_seconds: float = 5.0,
        patience_seconds: float = 0.0,
        connections_max: int = 8,
    ) -> None:
        self.address = address
        self._timeout_seconds = timeout_seconds
        self._peer = Peer(
            address,
            self._service,
            trust=trust,
            connect_seconds=connect_seconds,
            patience_seconds=patience_seconds,
            connections_max=connections_max,
        )

    @property
    def local_host(self) -> str:
        """This machine's address on the last connection; empty before the first."""
        return self._peer.local_host

    def close(self) -> None:
        """Close every connection; calls in flight end as `Unreachable`."""
        self._peer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(
        self, answer: type[_Answer], method: str, *values: Any, wait_seconds: float = 0.0
    ) -> _Answer:
        structs = tuple(to_wire(value) for value in values)
        answered = self._peer.call(method, structs, self._timeout_seconds + wait_seconds)
        if answer is NoneType:
            return None  # type: ignore[return-value]
        if answered is None:
            raise IncompatiblePeer(f"{self.address} answered {method} with an empty result")
        try:
            return from_wire(answer, answered)
        except FieldError as error:
            raise IncompatiblePeer(f"{self.address} answered {error.inside(method)}") from error


class ManagerClient(_Client):
    """A manager, as its workers and its users call it."""

    _service = Manager

    def describe(self) -> ManagerInfo:
        """Return facts about the manager, including the file that proves a shared directory."""
        return self._call(ManagerInfo, "describe")

    def register_worker(self, registration: Registration) -> Registered:
        """Offer a worker to the manager."""
        return self._call(Registered, "registerWorker", registration)

    def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatReply:
        """Report that a worker is alive; returns the attempts that it should stop."""
        return self._call(HeartbeatReply, "heartbeat", heartbeat)

    def report_update(self, worker: str, attempt: AttemptId, update: Update) -> None:
        """Report a published update; once this returns, the manager keeps it."""
        self._call(NoneType, "reportUpdate", worker, attempt, update)

    def report_failure(
        self, worker: str, attempt: AttemptId, kind: FailureKind, reason: str
    ) -> None:
        """Report an attempt that failed, with one line that says why."""
        self._call(NoneType, "reportFailure", worker, attempt, kind, reason)

    def report_hand_over(self, worker: str, attempt: AttemptId, snapshot: Snapshot) -> None:
        """Report the snapshot of a stopped attempt, so that another worker can continue it."""
        self._call(NoneType, "reportHandOver", worker, attempt, snapshot)

    def leave(self, worker: str, reason: str) -> None:
        """Unregister a worker that leaves."""
        self._call(NoneType, "leave", worker, reason)

    def submit(self, spec: str, request: str = "") -> str:
        """Submit an experiment, described in TOML; returns its identifier.

        The manager accepts the same `request` (4 to 32 hexadecimal digits) only once. If it is
        empty, the client chooses one at random.
        """
        # Chosen before the first attempt, so that a retry leads to the same experiment.
        named = request or secrets.token_hex(4)
        return self._call(str, "submit", spec, named, wait_seconds=_SUBMIT_SECONDS)

    def status(
        self, experiment: str = "", after_change: int = 0, wait_seconds: float = 0.0
    ) -> Status:
        """Return the state once it has changed since `after_change`, or when the wait is over.

        An empty `experiment` means the active one.
        """
        values = (experiment, after_change, wait_seconds)
        return self._call(Status, "status", *values, wait_seconds=wait_seconds)

    def list_experiments(
        self, before: str = "", limit: int = PAGE_EXPERIMENTS_MAX
    ) -> tuple[ExperimentSummary, ...]:
        """Return the last experiments that were submitted before `before`, oldest first.

        They come from the manager's directory. If `before` is empty, they are the newest ones.
        """
        return self._call(tuple[ExperimentSummary, ...], "listExperiments", before, limit)

    def cancel(self, experiment: str) -> None:
        """Cancel an experiment."""
        self._call(NoneType, "cancel", experiment)

    def disturbed(self, experiment: str, who: str, what: str) -> None:
        """Record that this process disturbs another one on purpose."""
        self._call(NoneType, "disturbed", experiment, who, what)

    def results(self, experiment: str, from_line: int = 0, wait_seconds: float = 0.0) -> RecordPage:
        """Return lines of a record, once line `from_line` exists or the wait is over."""
        values = (experiment, from_line, wait_seconds)
        return self._call(RecordPage, "results", *values, wait_seconds=wait_seconds)


class WorkerClient(_Client):
    """A worker, as its manager calls it."""

    _service = Worker

    def ping(self) -> WorkerInfo:
        """Return the name of the worker at this address, and what it runs."""
        return self._call(WorkerInfo, "ping")

    def train(self, task: TaskMessage) -> None:
        """Give a task to the worker; return once it has accepted the task, not when it is done."""
        self._call(NoneType, "train", task)

    def cancel(self, attempt: AttemptId) -> None:
        """Stop an attempt at its next step, if the worker runs it."""
        self._call(NoneType, "cancel", attempt)

    def hand_over(self, attempt: AttemptId) -> None:
        """Stop an attempt at its next step with a snapshot, if the worker runs it."""
        self._call(NoneType, "handOver", attempt)

    def drain(self) -> None:
        """Let the worker finish what it runs, then leave."""
        self._call(NoneType, "drain")
