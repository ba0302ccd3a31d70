"""The services of a manager and a worker: values in, values out.

The implementation of one of the two protocols below knows nothing of Thrift. Its arguments arrive
checked, its answers are values, and an error of our tree reaches the caller as the same error. Any
other exception is a defect, logged once, and the caller gets "internal error". Many threads call.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Annotated, Any, Protocol, get_type_hints

from downpour.base.errors import IncompatiblePeer, Refused, SharedDirectoryError, SpecError
from downpour.base.states import FailureKind
from downpour.base.values import (
    BARE_NAME,
    AttemptId,
    BareName,
    Rule,
    Snapshot,
    Update,
    is_bare_name,
)
from downpour.host.text import shortened
from downpour.network.rpc.generated import Manager, Worker
from downpour.network.rpc.generated.ttypes import Refusal, RefusalKind
from downpour.network.rpc.messages import (
    BlockDigest,
    ExperimentSummary,
    Heartbeat,
    HeartbeatReply,
    ManagerInfo,
    Reason,
    RecordPage,
    Registered,
    Registration,
    Status,
    TaskMessage,
    WorkerInfo,
)
from downpour.network.rpc.server import CallRejected, CallTurnedAway, Limits, Server
from downpour.network.rpc.trust import OPEN, Trust
from downpour.network.rpc.wire import FieldError, Shown, read_field, reader, shown, writer

ExperimentName = Annotated[str, Rule(lambda name: not name or is_bare_name(name), BARE_NAME)]
"""The name of an experiment, or nothing."""


class ManagerService(Protocol):
    """A manager's service; `SpecError`, `Refused` and `SharedDirectoryError` reach the caller.

    Every call may come twice, because its answer may have been lost; both answers must be equal.
    `describe`, `heartbeat`, `leave` and `list_experiments` never refuse.
    """

    def describe(self) -> ManagerInfo:
        """Return the facts that a worker needs before it registers."""

    def register_worker(self, registration: Registration) -> Registered:
        """Register a worker; refuse another protocol, or the presence of another folder."""

    def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatReply:
        """Record that a worker is alive; the reply says whether it is registered."""

    def report_update(self, worker: str, attempt: AttemptId, update: Update) -> None:
        """Accept an update; it is durable when this returns."""

    def report_failure(
        self, worker: str, attempt: AttemptId, kind: FailureKind, reason: Reason
    ) -> None:
        """Record that an attempt failed."""

    def report_hand_over(self, worker: str, attempt: AttemptId, snapshot: Snapshot) -> None:
        """Accept the snapshot of a stopped attempt, so that another worker can continue it."""

    def report_blocks(
        self, worker: str, experiment: BareName, blocks: tuple[BlockDigest, ...]
    ) -> tuple[Reason, ...]:
        """Record which blocks a worker has read; returns the ones that are different elsewhere."""

    def leave(self, worker: str, reason: Reason) -> None:
        """Unregister a worker."""

    def submit(self, spec: str, request: str) -> str:
        """Accept an experiment, described in TOML; a repeated request returns the same one."""

    def status(self, experiment: ExperimentName, after_change: int, wait_seconds: float) -> Status:
        """Wait for a change after `after_change`; an empty `experiment` means the active one."""

    def list_experiments(self, before: ExperimentName, limit: int) -> tuple[ExperimentSummary, ...]:
        """Return the last experiments before `before`, or of all, in the order of submission."""

    def cancel(self, experiment: ExperimentName) -> None:
        """Cancel an experiment; one that has ended stays as it is."""

    def disturbed(self, experiment: ExperimentName, who: str, what: str) -> None:
        """Record that someone disturbs a process on purpose."""

    def results(
        self, experiment: ExperimentName, from_line: int, wait_seconds: float
    ) -> RecordPage:
        """Wait for a line of the record at or after `from_line`."""


class WorkerService(Protocol):
    """A worker's service for its manager; only `train` may refuse, for instance as busy."""

    def ping(self) -> WorkerInfo:
        """Return the worker's name, and what it runs."""

    def train(self, task: TaskMessage) -> None:
        """Accept a task and return at once; accept a repeated call, too."""

    def cancel(self, attempt: AttemptId) -> None:
        """Stop an attempt at its next step; do nothing if it is not running."""

    def hand_over(self, attempt: AttemptId) -> None:
        """Stop an attempt at its next step with a snapshot; do nothing if it is not running."""

    def drain(self) -> None:
        """Finish what is running, then leave."""


def messages() -> list[str]:
    """Return the names of all messages, such as "manager.heartbeat"."""
    services = {"manager": ManagerService, "worker": WorkerService}
    return [
        f"{who}.{name}"
        for who, service in services.items()
        for name, method in vars(service).items()
        if callable(method) and not name.startswith("_")
    ]


def kinds_of_refusals() -> list[str]:
    """Return the names of all kinds of refusals."""
    return [kind.name for kind in RefusalKind]


def thrift_name(name: str) -> str:
    """Return Thrift's name of a method: report_update is reportUpdate."""
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


@cache
def types_of(declared: Callable[..., Any]) -> tuple[dict[str, Any], Any]:
    """Return the annotations of a declared call: its arguments' by name, and its answer's."""
    hints = get_type_hints(declared, include_extras=True)
    answer = hints.pop("return")
    return hints, answer


def serve_manager(
    service: ManagerService,
    host: str,
    port: int,
    limits: Limits | None = None,
    trust: Trust = OPEN,
    on_end: Callable[[], None] = lambda: None,
    listener: socket.socket | None = None,
) -> Server:
    """Return the server of a manager, bound to its port; see `Server` and `listen`."""
    processor = _processor(service, ManagerService, Manager)
    return Server(processor, host, port, limits, trust, on_end, listener)


def serve_worker(service: WorkerService, host: str, port: int, trust: Trust = OPEN) -> Server:
    """Return the server of a worker, bound to its port; see `Server` and `listen`."""
    return Server(_processor(service, WorkerService, Worker), host, port, trust=trust)


def _processor(service: object, interface: type, module: ModuleType) -> Any:
    """Adapt the methods that the interface declares, under Thrift's names for them."""
    calls = {}
    # We go through the interface, because no peer may call the service's other methods.
    for name, declared in vars(interface).items():
        if not name.startswith("_"):
            method = thrift_name(name)
            refuses = hasattr(getattr(module, f"{method}_result"), "refusal")
            calls[method] = _adapted(getattr(service, name), declared, refuses=refuses)
    return module.Processor(SimpleNamespace(**calls))


def _adapted(
    call: Callable[..., Any], declared: Callable[..., Any], *, refuses: bool
) -> Callable[..., Any]:
    """Wrap a method: structs → values, the call, its answer → struct, its errors → IDL's."""
    hints, answer = types_of(declared)
    write = writer(answer)
    arguments = tuple((name, reader(hint)) for name, hint in hints.items())

    def serve(*structs: Any) -> Any:
        try:
            values = [
                read_field(name, read, struct)
                for (name, read), struct in zip(arguments, structs, strict=True)
            ]
            return write(call(*values))
        except (IncompatiblePeer, Refused, SharedDirectoryError, SpecError) as error:
            if refuses:
                raise _refusal(error) from None
            # The IDL declares no refusal for this call, so the error goes as one of Thrift's own.
            if isinstance(error, IncompatiblePeer):
                raise CallRejected(message=shortened(str(error))) from None
            # A replaced manager is stopping, but its workers go on sending heartbeats.
            if isinstance(error, Refused) and error.busy:
                raise CallTurnedAway(message=shortened(str(error))) from None
            raise
        except (SystemExit, KeyboardInterrupt) as error:
            # Thrift's processor lets these pass, which would end this thread without an answer.
            raise RuntimeError("a call tried to end the process that serves it") from error

    return serve


def _refusal(error: Exception) -> Refusal:
    """Translate an error of our tree into a refusal; the inverse of `connection._refused`."""
    match error:
        case SpecError() | FieldError():
            kind, field, value, reason = RefusalKind.ASKED, error.field, error.value, error.accepted
        case SharedDirectoryError():
            kind, field = RefusalKind.SHARED_DIRECTORY, "shared_dir"
            value, reason = Shown(error.path), error.reason
        case Refused():
            kind = RefusalKind.BUSY if error.busy else RefusalKind.UNKNOWN
            field, value, reason = error.field, Shown(error.value), error.reason
        case _:
            kind, field = RefusalKind.INCOMPATIBLE, ""
            value, reason = Shown(), str(error)
    return Refusal(kind, shortened(field), shortened(shown(value)), shortened(reason))
