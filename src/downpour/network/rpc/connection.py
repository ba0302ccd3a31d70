"""One peer, called by many threads: pooled connections, and a deadline for each call.

A connection carries one call at a time. It returns to the pool only after a whole answer to that
call. Otherwise we close it, because the next answer on it might belong to the last call. If the
peer has closed a pooled connection meanwhile, we silently open a new one and repeat the call, which
is safe for every call of this protocol. `messages.py` declares the calls.
The clients of managers and workers take and return values, and threads may share them.
"""

from __future__ import annotations

import secrets
import socket
import ssl
from collections.abc import Callable
from functools import update_wrapper
from inspect import signature
from threading import BoundedSemaphore, Event, RLock
from time import monotonic
from types import ModuleType, NoneType
from typing import Any, Concatenate, NamedTuple, ParamSpec, Self, TypeVar

from thrift.Thrift import TApplicationException, TMessageType

from downpour.base.errors import (
    DeadlineExceeded,
    IncompatiblePeer,
    ProtocolError,
    Refused,
    SharedDirectoryError,
    SpecError,
    Unreachable,
    Untrusted,
)
from downpour.host.process import lacks_descriptors
from downpour.network.rpc import frames, messages
from downpour.network.rpc.generated import Manager, Worker
from downpour.network.rpc.generated.ttypes import Refusal, RefusalKind
from downpour.network.rpc.trust import OPEN, UNTRUSTED, Address, Trust, greet, refused_by_tls
from downpour.network.rpc.wire import FieldError, Shown, from_wire, thrift_name, to_wire, types_of

CALL_SECONDS = 10.0
"""The deadline of a call, unless a client has another."""
_DESCRIPTOR_WAIT_SECONDS = 0.1
_SUBMIT_SECONDS = 50.0
"""Added to the deadline: a manager that has just taken over may have to import torch first."""

_Arguments = ParamSpec("_Arguments")
_Answer = TypeVar("_Answer")


class Peer:
    """Calls one Thrift service at one address; safe to share between threads.

    A call has `timeout_seconds`, beside the time that we ask the peer to wait. At most
    `connections_max` are in flight; further ones wait, within their deadline.
    """

    service: ModuleType
    """The generated module of the service."""

    def __init__(
        self,
        address: Address,
        *,
        trust: Trust = OPEN,
        timeout_seconds: float = CALL_SECONDS,
        connect_seconds: float = 5.0,
        connections_max: int = 8,
    ) -> None:
        self.address = address
        self.local_host = ""
        """This machine's address on the last connection; empty before the first."""
        self.timeout_seconds = timeout_seconds
        self._trust = trust
        self._connect_seconds = connect_seconds
        self._idle: list[_Connection] = []
        # Idle connections and those in use, so that `close` also ends calls in flight.
        self._all: set[_Connection] = set()
        self._lock = RLock()
        self._free = BoundedSemaphore(connections_max)
        self._closed = Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(
        self, declared: Callable[..., _Answer], *values: Any, wait_seconds: float = 0.0
    ) -> _Answer:
        """Make a call that a service declares; the peer may wait for `wait_seconds` before it."""
        method, (_, answer_type) = thrift_name(declared.__name__), types_of(declared)
        structs = tuple(map(to_wire, values))
        answer = self._answer(method, structs, self.timeout_seconds + wait_seconds)
        if answer_type is NoneType:
            return None  # type: ignore[return-value]
        if answer is None:
            raise IncompatiblePeer(f"{self.address} answered {method} with an empty result")
        try:
            return from_wire(answer_type, answer)  # type: ignore[no-any-return]
        except FieldError as error:
            raise IncompatiblePeer(f"{self.address} answered {error.inside(method)}") from error

    def _answer(self, method: str, structs: tuple[Any, ...], seconds: float) -> Any:
        deadline = monotonic() + seconds
        arguments = getattr(self.service, f"{method}_args")(*structs)
        result = getattr(self.service, f"{method}_result")()
        call = _Call(method, arguments, result, deadline)
        if self._closed.is_set():
            raise Unreachable(str(self.address), "this client is closed")
        if not self._free.acquire(timeout=seconds):
            raise DeadlineExceeded(f"{self.address}: {method} found no free connection in time")
        try:
            return self._exchange(call)
        except ssl.SSLEOFError as error:
            raise Unreachable(str(self.address), "the connection was closed") from error
        except ssl.SSLError as error:
            raise refused_by_tls(self.address, error) from error
        except TimeoutError as error:
            text = f"{self.address}: {method} took longer than {seconds:g} s"
            raise DeadlineExceeded(text) from error
        except (OSError, frames.Closed) as error:
            raise Unreachable(str(self.address), _reason(error)) from error
        finally:
            self._free.release()

    def close(self) -> None:
        """Close every connection; calls in flight end as `Unreachable`."""
        self._closed.set()
        self._drop_idle()
        with self._lock:
            for connection in self._all:
                connection.channel.interrupt()

    def _exchange(self, call: _Call) -> Any:
        """Call over a pooled connection, and over a new one if that turns out to be stale."""
        with self._lock:
            pooled = self._idle.pop() if self._idle else None
        if pooled is not None:
            try:
                return self._over(pooled, call)
            except (OSError, frames.Closed) as error:
                if isinstance(error, TimeoutError) and error.errno is None:
                    raise  # the deadline passed; with a number, the network itself gave up
                self._drop_idle()
        return self._over(self._connected(call.deadline), call)

    def _over(self, connection: _Connection, call: _Call) -> Any:
        whole = False
        try:
            answer = connection.exchange(call)
            whole = True
        except IncompatiblePeer as error:
            raise IncompatiblePeer(f"{self.address}: {error}") from error
        finally:
            with self._lock:
                if whole and not self._closed.is_set():
                    self._idle.append(connection)
                else:
                    self._drop(connection)
        if isinstance(answer, TApplicationException):
            raise _application_error(self.address, call.method, answer)
        refusal = getattr(answer, "refusal", None)
        if refusal is not None:
            raise _refused(refusal)
        return getattr(answer, "success", None)

    def _drop_idle(self) -> None:
        """Close all idle connections: if one is stale, the peer has closed the others, too."""
        with self._lock:
            while self._idle:
                self._drop(self._idle.pop())

    def _drop(self, connection: _Connection) -> None:
        with self._lock:
            self._all.discard(connection)
        connection.channel.close()

    def _connected(self, deadline: float) -> _Connection:
        address = str(self.address)
        # For connecting and the handshake together; never 0, which makes a socket non-blocking.
        seconds = min(self._connect_seconds, max(deadline - monotonic(), 0.001))
        until = monotonic() + seconds
        try:
            sock = self._opened(seconds, deadline)
        # This is not the call's deadline: we have not sent the call, so it certainly had no effect.
        except TimeoutError as error:
            raise Unreachable(address, f"no answer within {seconds:.1f} s") from error
        except UnicodeError as error:
            raise Unreachable(address, "not a host name") from error
        connection = _Connection(sock)
        self.local_host = str(sock.getsockname()[0])
        with self._lock:
            self._all.add(connection)
            is_closed = self._closed.is_set()
        greeted = False
        try:
            # Without a listener on an ephemeral port, TCP may connect the socket to itself.
            if is_closed or sock.getsockname() == sock.getpeername():
                raise Unreachable(address, "no process listens there")
            greet(connection.channel, self.address, self._trust, until)
            greeted = True
        except TimeoutError as error:
            raise Unreachable(address, f"no handshake within {seconds:.1f} s") from error
        finally:
            if not greeted:
                self._drop(connection)
        return connection

    def _opened(self, seconds: float, deadline: float) -> socket.socket:
        """Open a connection; if this process has no descriptor left, wait for one."""
        # Otherwise the caller would believe that the peer is dead.
        while True:
            try:
                return socket.create_connection((self.address.host, self.address.port), seconds)
            except OSError as error:
                if not lacks_descriptors(error):
                    raise
            if monotonic() >= deadline or self._closed.wait(_DESCRIPTOR_WAIT_SECONDS):
                text = f"{self.address}: this process may not open more connections or files"
                raise DeadlineExceeded(text)


class _Call(NamedTuple):
    method: str
    arguments: Any
    result: Any  # the empty struct that the answer fills
    deadline: float


class _Connection:
    """One socket, one call at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self.channel = frames.Channel(sock)
        self._sequence = 0

    def exchange(self, call: _Call) -> Any:
        """Send a call and read its answer: the result struct, or a TApplicationException."""
        # Thrift's numbers are signed and have 32 bits.
        self._sequence = (self._sequence + 1) % 2**31
        protocol, buffer = frames.accelerated()
        protocol.writeMessageBegin(call.method, TMessageType.CALL, self._sequence)
        call.arguments.write(protocol)
        self.channel.send(buffer.getvalue(), call.deadline)
        message = self.channel.receive(call.deadline)
        try:
            return self._read(message, call)
        except IncompatiblePeer:
            raise
        except Exception as error:
            text = f"cannot read the answer to {call.method}: {type(error).__name__}: {error}"
            raise IncompatiblePeer(text) from error

    def _read(self, message: bytes, call: _Call) -> Any:
        answer, _ = frames.accelerated(message)
        name, kind, sequence = answer.readMessageBegin()
        if kind not in (TMessageType.REPLY, TMessageType.EXCEPTION):
            raise IncompatiblePeer(f"the answer to {call.method} is a message of kind {kind}")
        # Thrift's own client does not, and returned the previous call's answer after a timeout.
        if (name, sequence) != (call.method, self._sequence):
            raise IncompatiblePeer(f"the answer to {call.method} belongs to {name!r}")
        struct = TApplicationException() if kind == TMessageType.EXCEPTION else call.result
        struct.read(answer)
        return struct


def _application_error(
    address: Address, method: str, error: TApplicationException
) -> ProtocolError:
    """Translate the answer of a peer that could not, or would not, carry out a call."""
    if error.type == UNTRUSTED:
        return Untrusted(str(address), str(error.message)[:200])
    if error.type == TApplicationException.INTERNAL_ERROR:
        return ProtocolError(f"{address}: {method} failed there; the log of the peer says why")
    return IncompatiblePeer(f"{address} does not understand {method}: {error}")


def _refused(refusal: Refusal) -> Exception:
    """Return the error that a refusal stands for; the inverse of `services._refusal`."""
    field, value, reason = refusal.field, Shown(refusal.value), refusal.reason
    match refusal.kind:
        case RefusalKind.ASKED:
            return SpecError(field, value, reason)
        case RefusalKind.INCOMPATIBLE:
            return IncompatiblePeer(f"{field} = {value}: {reason}" if field else reason)
        case RefusalKind.SHARED_DIRECTORY:
            return SharedDirectoryError(value, reason)
        case _:
            return Refused(field, reason, busy=refusal.kind == RefusalKind.BUSY, value=str(value))


def _reason(error: Exception) -> str:
    if isinstance(error, frames.Closed):
        return f"the connection was {error}"
    strerror = getattr(error, "strerror", None)
    return strerror or str(error) or type(error).__name__


def _remote(
    declared: Callable[Concatenate[Any, _Arguments], _Answer],
) -> Callable[Concatenate[Peer, _Arguments], _Answer]:
    """Return the client's method for a call that a service declares."""
    names = list(signature(declared).parameters)[1:]

    def call(self: Peer, /, *values: _Arguments.args, **named: _Arguments.kwargs) -> _Answer:
        others = (named[name] for name in names[len(values) :])
        return self.call(declared, *values, *others)

    return update_wrapper(call, declared)


class ManagerClient(Peer):
    """A manager, as its workers and its users call it."""

    service = Manager

    describe = _remote(messages.ManagerService.describe)
    register_worker = _remote(messages.ManagerService.register_worker)
    heartbeat = _remote(messages.ManagerService.heartbeat)
    report_update = _remote(messages.ManagerService.report_update)
    report_failure = _remote(messages.ManagerService.report_failure)
    report_hand_over = _remote(messages.ManagerService.report_hand_over)
    report_blocks = _remote(messages.ManagerService.report_blocks)
    leave = _remote(messages.ManagerService.leave)
    cancel = _remote(messages.ManagerService.cancel)
    pause = _remote(messages.ManagerService.pause)
    disturbed = _remote(messages.ManagerService.disturbed)

    def submit(self, spec: str, request: str = "", owner: str = "", priority: int = 0) -> str:
        """Submit an experiment, described in TOML; returns its identifier.

        The manager accepts a `request` (4 to 32 hexadecimal digits) only once; empty: a random one.
        """
        # Chosen before the first attempt, so that a retry leads to the same experiment.
        values = spec, request or secrets.token_hex(4), owner, priority
        return self.call(messages.ManagerService.submit, *values, wait_seconds=_SUBMIT_SECONDS)

    def status(
        self, experiment: str = "", after_change: int = 0, wait_seconds: float = 0.0
    ) -> messages.Status:
        """Return the state once it has changed since `after_change`, or when the wait is over."""
        values = experiment, after_change, wait_seconds
        return self.call(messages.ManagerService.status, *values, wait_seconds=wait_seconds)

    def list_experiments(
        self, before: str = "", limit: int = messages.PAGE_EXPERIMENTS_MAX
    ) -> tuple[messages.ExperimentSummary, ...]:
        """Return the last experiments before `before`, or the newest ones, oldest first."""
        return self.call(messages.ManagerService.list_experiments, before, limit)

    def results(
        self, experiment: str, from_line: int = 0, wait_seconds: float = 0.0
    ) -> messages.RecordPage:
        """Return lines of a record, once line `from_line` exists or the wait is over."""
        values = experiment, from_line, wait_seconds
        return self.call(messages.ManagerService.results, *values, wait_seconds=wait_seconds)


class WorkerClient(Peer):
    """A worker, as its manager calls it."""

    service = Worker

    ping = _remote(messages.WorkerService.ping)
    train = _remote(messages.WorkerService.train)
    cancel = _remote(messages.WorkerService.cancel)
    hand_over = _remote(messages.WorkerService.hand_over)
    drain = _remote(messages.WorkerService.drain)
