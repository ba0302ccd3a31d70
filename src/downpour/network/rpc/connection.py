"""One peer, called by many threads: pooled connections, a deadline for each call, and retries.

A connection carries one call at a time. It returns to the pool only after a whole answer to that
call. Otherwise we close it, because the next answer on it might belong to the last call. If the
peer has closed a pooled connection meanwhile, we silently open a new one. Every call of this
protocol is safe to repeat, so we may retry a call that got no answer. This module takes and returns
structs; `client.py` handles values.
"""

from __future__ import annotations

import socket
import ssl
from threading import BoundedSemaphore, Event, Lock
from time import monotonic
from types import ModuleType
from typing import Any

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential
from tenacity.nap import sleep_using_event
from tenacity.stop import stop_when_event_set
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
from downpour.network.rpc import frames
from downpour.network.rpc.generated.ttypes import Refusal, RefusalKind
from downpour.network.rpc.trust import OPEN, UNTRUSTED, Address, Trust, greet, refused_by_tls
from downpour.network.rpc.wire import Shown

_DESCRIPTOR_WAIT_SECONDS = 0.1


class Peer:
    """Calls one Thrift service at one address; safe to share between threads.

    Args:
        address: where the service answers.
        service: the generated module of the service.
        trust: this side's credentials, and its demands on the service.
        connect_seconds: the limit for opening a connection.
        patience_seconds: how long to retry a call while no process answers; 0: don't.
        connections_max: calls in flight at a time; further ones wait, within their deadline.
    """

    def __init__(
        self,
        address: Address,
        service: ModuleType,
        *,
        trust: Trust = OPEN,
        connect_seconds: float = 5.0,
        patience_seconds: float = 0.0,
        connections_max: int = 8,
    ) -> None:
        self.address = address
        self.local_host = ""
        self._service = service
        self._trust = trust
        self._connect_seconds = connect_seconds
        self._idle: list[_Connection] = []
        # Idle connections and those in use, so that `close` also ends calls in flight.
        self._all: set[_Connection] = set()
        self._lock = Lock()
        self._free = BoundedSemaphore(connections_max)
        self._closed = Event()
        self._patient = patience_seconds > 0
        self._retrying = Retrying(
            retry=retry_if_exception_type(Unreachable),
            stop=stop_after_delay(patience_seconds) | stop_when_event_set(self._closed),
            wait=wait_random_exponential(multiplier=0.1, max=2.0),
            sleep=sleep_using_event(self._closed),
            reraise=True,
        )

    def call(self, method: str, structs: tuple[Any, ...], seconds: float) -> Any:
        """Call a method with structs; the answer is a struct, or None for a call without one."""
        try:
            # We bypass tenacity, because a call that succeeds at once need not pay for it.
            return self._call_once(method, structs, seconds)
        except Unreachable:
            if not self._patient:
                raise
        return self._retrying(self._call_once, method, structs, seconds)

    def close(self) -> None:
        """Close every connection; calls in flight end as `Unreachable`."""
        self._closed.set()
        self._drop_idle()
        with self._lock:
            for connection in self._all:
                connection.channel.interrupt()

    def _call_once(self, method: str, structs: tuple[Any, ...], seconds: float) -> Any:
        deadline = monotonic() + seconds
        arguments = getattr(self._service, f"{method}_args")(*structs)
        result = getattr(self._service, f"{method}_result")()
        if self._closed.is_set():
            raise Unreachable(str(self.address), "this client is closed")
        if not self._free.acquire(timeout=seconds):
            raise DeadlineExceeded(f"{self.address}: {method} found no free connection in time")
        try:
            return self._exchange(method, arguments, result, deadline)
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

    def _exchange(self, method: str, arguments: Any, result: Any, deadline: float) -> Any:
        """Call over a pooled connection, and over a new one if that turns out to be stale."""
        with self._lock:
            pooled = self._idle.pop() if self._idle else None
        if pooled is not None:
            try:
                return self._over(pooled, method, arguments, result, deadline)
            except (OSError, frames.Closed) as error:
                if isinstance(error, TimeoutError) and error.errno is None:
                    raise  # the deadline passed; with a number, the network itself gave up
                self._drop_idle()
        return self._over(self._connected(deadline), method, arguments, result, deadline)

    def _over(
        self, connection: _Connection, method: str, arguments: Any, result: Any, deadline: float
    ) -> Any:
        whole = False
        try:
            answer = connection.exchange(method, arguments, result, deadline)
            whole = True
        except IncompatiblePeer as error:
            raise IncompatiblePeer(f"{self.address}: {error}") from error
        finally:
            with self._lock:
                if whole and not self._closed.is_set():
                    self._idle.append(connection)
                else:
                    self._all.discard(connection)
                    connection.channel.close()
        if isinstance(answer, TApplicationException):
            raise _application_error(self.address, method, answer)
        refusal = getattr(answer, "refusal", None)
        if refusal is not None:
            raise _refused(refusal)
        return getattr(answer, "success", None)

    def _drop_idle(self) -> None:
        """Close all idle connections: if one is stale, the peer has closed the others, too."""
        with self._lock:
            for connection in self._idle:
                self._all.discard(connection)
                connection.channel.close()
            self._idle.clear()

    def _connected(self, deadline: float) -> _Connection:
        address = str(self.address)
        # The time for connecting and the handshake together; never 0, which makes a socket
        # non-blocking.
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
            if self._closed.is_set() or sock.getsockname() == sock.getpeername():
                # The second condition: if no process listens on a port of the ephemeral range, TCP
                # may connect the socket to itself (simultaneous open).
                self._all.discard(connection)
                connection.channel.close()
                raise Unreachable(address, "no process listens there")
        try:
            self._greet(connection, until)
        except TimeoutError as error:
            raise Unreachable(address, f"no handshake within {seconds:.1f} s") from error
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
                what = f"{self.address}: this process may not open more connections or files"
                raise DeadlineExceeded(what)

    def _greet(self, connection: _Connection, deadline: float) -> None:
        """Do the handshake over a new connection; close the connection if that fails."""
        greeted = False
        try:
            greet(connection.channel, self.address, self._trust, deadline)
            greeted = True
        finally:
            if not greeted:
                with self._lock:
                    self._all.discard(connection)
                connection.channel.close()


class _Connection:
    """One socket, one call at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self.channel = frames.Channel(sock)
        self._sequence = 0

    def exchange(self, method: str, arguments: Any, result: Any, deadline: float) -> Any:
        """Send a call and read its answer: the result struct, or a TApplicationException."""
        # Thrift's numbers are signed and have 32 bits.
        self._sequence = (self._sequence + 1) % 2**31
        call, buffer = frames.accelerated()
        call.writeMessageBegin(method, TMessageType.CALL, self._sequence)
        arguments.write(call)
        self.channel.send(buffer.getvalue(), deadline)
        message = self.channel.receive(deadline)
        try:
            return self._read(message, method, result)
        except Exception as error:
            if isinstance(error, IncompatiblePeer):
                raise
            text = f"cannot read the answer to {method}: {type(error).__name__}: {error}"
            raise IncompatiblePeer(text) from error

    def _read(self, message: bytes, method: str, result: Any) -> Any:
        answer, _ = frames.accelerated(message)
        name, kind, sequence = answer.readMessageBegin()
        if kind not in (TMessageType.REPLY, TMessageType.EXCEPTION):
            raise IncompatiblePeer(f"the answer to {method} is a message of kind {kind}")
        # Thrift's own client does not compare the numbers. Measured: after a timeout, it returned
        # the answer to the previous call.
        if (name, sequence) != (method, self._sequence):
            raise IncompatiblePeer(f"the answer to {method} belongs to {name!r}")
        struct = TApplicationException() if kind == TMessageType.EXCEPTION else result
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
