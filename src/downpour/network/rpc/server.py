"""A threaded Thrift server that survives any peer, and that you can stop.

Each connection has its own thread, which waits for a frame, runs the call and answers. A peer may
send garbage, half a frame, an oversize one or nothing at all, or fail to authenticate itself. Such
a peer loses its connection as the limits say, and other peers notice nothing. Stopping closes idle
connections at once and lets the calls in flight finish within a grace time.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from threading import Condition, Event, Lock, Thread, current_thread
from time import monotonic
from typing import Any, Self

from thrift.Thrift import TApplicationException, TMessageType
from thrift.transport.TTransport import TTransportException

from downpour.base.errors import SpecError, shortened
from downpour.host.process import connections_allowed
from downpour.network.rpc import frames
from downpour.network.rpc.trust import (
    OPEN,
    Address,
    CallerRejected,
    Trust,
    admit,
    is_hello,
    unasked,
)

_LOG = logging.getLogger(__name__)
_BACKLOG = 1024
"""How many connections may wait, for instance when all workers of a cluster reconnect at once."""
_QUIET_SECONDS = 10.0
"""The pause between two lines of the log about peers that the server does not take or admit."""
_PARTING_SECONDS = 1.0
"""How long a connection that must make room may take to end."""
_TRUST_WANTED = (
    "needs a token (DOWNPOUR_TOKEN, or --token-file with a file of `downpour manager --make-token`)"
    " or TLS (--tls-cert, --tls-key, --tls-ca), because other machines can reach it there"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits for one peer of a server."""

    handshake_seconds: float = 10.0  # to authenticate itself
    idle_seconds: float = 600.0  # without a call, before the server closes its connection
    frame_seconds: float = 30.0  # for a frame that has begun, in either direction
    connections: int = field(default_factory=connections_allowed)
    """For a further one, the server closes the oldest without a call yet, or else that one."""


class Server:
    """Serves one Thrift processor at one address; the constructor binds, `start` serves.

    The host `0.0.0.0` or `::` means every interface, and port 0 any free one. `on_end` is called in
    a connection's thread when that has ended, unless the server stops.
    """

    def __init__(
        self,
        processor: Any,
        host: str,
        port: int,
        limits: Limits | None = None,
        trust: Trust = OPEN,
        on_end: Callable[[], None] = lambda: None,
        listener: socket.socket | None = None,
    ) -> None:
        self._processor = processor
        self._limits = limits or Limits()
        self._trust = trust
        self._on_end = on_end
        self._listener = listener or listen(host, port, trust)
        self.address = Address(*self._listener.getsockname()[:2])
        self._changed = Condition()
        self._connections: dict[Thread, frames.Channel] = {}
        # Connections without a call yet, oldest first.
        self._newcomers: dict[Thread, frames.Channel] = {}
        self._accepting, self._strangers = Sparing(_LOG), Sparing(_LOG)
        self._busy: set[Thread] = set()
        self._stopping = Event()
        processor.on_message_begin(_refuser_of_unknown(processor._processMap))  # noqa: SLF001

    def start(self) -> Self:
        """Serve in a thread, and return at once."""
        Thread(target=self.serve, name=f"rpc {self.address}", daemon=True).start()
        return self

    def serve(self) -> None:
        """Serve until `stop` is called from another thread."""
        with self._listener:
            while not self._stopping.is_set():
                try:
                    sock, peer = self._listener.accept()
                    channel = frames.Channel(sock)
                except OSError as error:
                    # A peer that gave up (ECONNABORTED) is normal. Without free descriptors,
                    # `accept` fails at once, again and again: pause, because the caller waits.
                    if not self._stopping.is_set() and error.errno != errno.ECONNABORTED:
                        text = "%s cannot accept: %s"
                        self._accepting(logging.WARNING, text, self.address, error)
                        self._stopping.wait(0.1)
                else:
                    self._admit(channel, str(Address(*peer[:2])))

    def stop(self, grace_seconds: float = 5.0) -> None:
        """Close idle connections at once, and the others when their call in flight has ended.

        Returns when no call is in flight, or after `grace_seconds`. A call may stop the server that
        runs it; it does not wait for itself, and gets an answer. You may call this method twice.
        """
        with self._changed:
            self._stopping.set()
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`; closing would not
            self._interrupt(self._busy)
            myself = {current_thread()}
            # A call may stop the server that runs it: it must not wait for itself.
            self._changed.wait_for(lambda: self._busy <= myself, grace_seconds)
            self._interrupt(myself)
        self._listener.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _make_room(self) -> bool:
        """Close the oldest newcomer if there are too many connections; the lock is held."""
        limit = self._limits.connections
        if len(self._connections) >= limit and self._newcomers:
            next(iter(self._newcomers.values())).interrupt()
            self._changed.wait_for(lambda: len(self._connections) < limit, _PARTING_SECONDS)
        return len(self._connections) < limit

    def _admit(self, channel: frames.Channel, peer: str) -> None:
        """Start a connection's thread, unless there are too many or the server stops."""
        thread = Thread(
            target=self._converse, args=(channel, peer), name=f"rpc from {peer}", daemon=True
        )
        with self._changed:
            refused = self._stopping.is_set() or not self._make_room()
            # Before the thread runs, so that `stop` finds every connection.
            if not refused:
                self._connections[thread] = self._newcomers[thread] = channel
        if refused:
            text = "%s closes %s without an answer: it is stopping, or full"
            self._accepting(logging.WARNING, text, self.address, peer)
            channel.close()
            return
        try:
            thread.start()
        except RuntimeError as error:
            text = "%s has no thread for %s: %s"
            self._accepting(logging.WARNING, text, self.address, peer, error)
            self._end(thread, channel)

    def _converse(self, channel: frames.Channel, peer: str) -> None:
        tell: Callable[..., None] = self._strangers  # until the peer has authenticated itself
        try:
            admit(channel, self._trust, monotonic() + self._limits.handshake_seconds)
            tell = _LOG.log
            while self._exchange(channel):
                pass
        except frames.Closed as closed:
            if closed.midway:
                tell(logging.INFO, "%s left in the middle of a message", peer)
        except CallerRejected as rejected:
            self._strangers(logging.WARNING, "%s %s", peer, rejected)
        except ssl.SSLError as error:
            tell(logging.WARNING, "rejected %s: TLS: %s", peer, error.reason)
        except OSError as error:
            tell(logging.INFO, "%s loses its connection: %s", peer, error)
        except Exception as error:  # noqa: BLE001 - one peer must not affect others
            text = "%s loses its connection: %s: %s"
            tell(logging.WARNING, text, peer, type(error).__name__, error)
        finally:
            self._end(current_thread(), channel)
        try:
            if not self._stopping.is_set():
                self._on_end()
        except Exception:  # noqa: BLE001 - the thread ends here, and no caller waits
            _LOG.exception("handling the end of the connection from %s failed", peer)

    def _exchange(self, channel: frames.Channel) -> bool:
        """Wait for one call and answer it; returns false if the server is stopping."""
        limits = self._limits
        frame = channel.receive(
            monotonic() + limits.idle_seconds, frame_seconds=limits.frame_seconds
        )
        if is_hello(frame):
            unasked(channel, frame, monotonic() + limits.frame_seconds)
        with self._changed:
            # `stop` takes the same lock: either it finds this call busy, or we find it stopping.
            if self._stopping.is_set():
                return False
            self._newcomers.pop(current_thread(), None)
            self._busy.add(current_thread())
        try:
            reply = self._answer(frame)
            channel.send(reply, monotonic() + limits.frame_seconds)
        finally:
            with self._changed:
                self._busy.discard(current_thread())
                self._changed.notify_all()
        return not self._stopping.is_set()

    def _answer(self, frame: bytes) -> bytes:
        call, _ = frames.accelerated(frame)
        reply, buffer = frames.accelerated()
        try:
            self._processor.process(call, reply)
        except _UnknownMethod as unknown:
            reply.writeMessageBegin(unknown.method, TMessageType.EXCEPTION, unknown.sequence)
            TApplicationException(TApplicationException.UNKNOWN_METHOD, str(unknown)).write(reply)
        except CallRejected as rejected:
            self._reject(frame, reply, rejected)
        except ValueError as error:  # such as the number of an enum that only a newer peer knows
            self._reject(frame, reply, CallRejected(message=shortened(str(error))))
        answer: bytes = buffer.getvalue()
        return answer

    def _reject(self, frame: bytes, reply: Any, rejected: CallRejected) -> None:
        """Write the answer to a call that cannot be carried out."""
        method, _, sequence = frames.accelerated(frame)[0].readMessageBegin()
        _LOG.warning("%s rejects a call of %s: %s", self.address, method, rejected.message)
        reply.writeMessageBegin(method, TMessageType.EXCEPTION, sequence)
        TApplicationException(rejected.kind, rejected.message).write(reply)

    def _interrupt(self, spared: set[Thread]) -> None:
        for thread, channel in self._connections.items():
            if thread not in spared:
                channel.interrupt()

    def _end(self, thread: Thread, channel: frames.Channel) -> None:
        """Close a connection first, so that the connections that we count hold all descriptors."""
        channel.close()
        with self._changed:
            self._connections.pop(thread, None)
            self._newcomers.pop(thread, None)
            self._changed.notify_all()


class Sparing:
    """Logs a line of each level per ten seconds, and counts the others: strangers cause many."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = monotonic) -> None:
        self._log = log
        self._clock = clock
        self._lock = Lock()
        self._quiet_until: dict[int, float] = {}
        self._left_out: Counter[int] = Counter()

    def __call__(self, level: int, text: str, *values: object) -> None:
        """Log a line as `Logger.log` does, or count it."""
        with self._lock:
            if self._clock() < self._quiet_until.get(level, 0.0):
                self._left_out[level] += 1
                return
            self._quiet_until[level] = self._clock() + _QUIET_SECONDS
            left_out = self._left_out.pop(level, 0)
        more = f" (after {left_out} more such lines)" if left_out else ""
        self._log.log(level, f"{text}%s", *values, more)


class CallRejected(TTransportException):  # type: ignore[misc]
    """A call whose arguments the protocol does not allow, and for which the IDL has no refusal.

    It is a transport's exception, because the generated processors pass on no other kind. They log
    any other kind with a traceback, and a peer must not be able to write tracebacks into our log.
    """

    kind = TApplicationException.PROTOCOL_ERROR


class CallTurnedAway(CallRejected):
    """A call that may succeed later or elsewhere, and for which the IDL has no refusal."""

    kind = TApplicationException.INTERNAL_ERROR


class _UnknownMethod(Exception):
    def __init__(self, method: str, sequence: int) -> None:
        super().__init__(f"unknown method {method[:80]!r}")
        self.method = method
        self.sequence = sequence


def _refuser_of_unknown(methods: Collection[str]) -> Callable[[str, int, int], None]:
    """Return a hook that refuses unknown methods by name alone."""
    # Thrift would skip the arguments first, which takes seconds for a hostile frame.

    def refuse(name: str, _kind: int, sequence: int) -> None:
        if name not in methods:
            raise _UnknownMethod(name, sequence)

    return refuse


def listen(host: str, port: int, trust: Trust, field: str = "port") -> socket.socket:
    """Listen on IPv4 if a name has addresses of both kinds, and on both for `::`."""
    if not 0 <= port <= 65535:
        raise SpecError(field, port, "a port from 0 to 65535; 0 picks a free one")
    try:
        resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, *_, address = min(resolved, key=lambda entry: entry[0] == socket.AF_INET6)
        if trust.is_open and not Address(str(address[0]), port).is_loopback:
            raise SpecError("host", host, _TRUST_WANTED)
        both = host == "::" and socket.has_dualstack_ipv6()
        # The address, not the name: a second lookup could return one that we have not checked.
        return socket.create_server(address, family=family, backlog=_BACKLOG, dualstack_ipv6=both)
    except (socket.gaierror, UnicodeError) as error:
        raise SpecError("host", host, "a name or address of this machine") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise SpecError(field, port, f"is in use on {host}; 0 picks a free one") from error
        if error.errno == errno.EACCES:
            raise SpecError(field, port, "a port this user may open, from 1024 on") from error
        raise SpecError("host", host, f"an address of this machine ({error.strerror})") from error
