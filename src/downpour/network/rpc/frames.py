"""Sends and receives whole messages over a socket, each by a deadline.

A frame is four bytes of length, then the message. This is Thrift's framed transport with features
that the library's version lacks. Before every read, we set the socket's timeout to the remaining
time, so a peer that sends byte by byte cannot exceed a deadline. We decode a message from its own
frame alone, so its content cannot make a reader wait for more. An error ends a channel's use.
"""

import contextlib
import hmac
import socket
import ssl
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from time import monotonic
from typing import Any

from thrift.protocol.TBinaryProtocol import TBinaryProtocolAccelerated
from thrift.transport.TTransport import TMemoryBuffer

from downpour.base.errors import IncompatiblePeer

NOT_ACCELERATED = "thrift lacks its C extension, so messages take up to 20 times as long"
ACCELERATE = "install a C compiler, then `pip install --force-reinstall --no-binary thrift thrift`"
FRAME_BYTES_MAX = 16 * 2**20

_ITEMS_MAX = 100_000
"""The limit for a list in a message: Thrift trusts a list's length before it reads the items."""
_HEADER_BYTES = 4
_CHUNK_BYTES = 64 * 1024
_PARTING_SECONDS = 1.0
"""How long a peer refused in the TLS handshake has to read the alert; see `Channel._part`."""
_SEAL_BYTES = 32
Seal = Callable[[bytes], bytes]
# A peer whose machine lost its power sends no FIN; we notice after 30 + 3 * 10 s.
_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))


class Closed(Exception):
    """The peer closed the connection; `midway` is true if a frame had begun."""

    def __init__(self, *, midway: bool) -> None:
        super().__init__("closed in the middle of a message" if midway else "closed")
        self.midway = midway


def _code(key: bytes, numbers: Iterator[int], message: bytes) -> bytes:
    """Return the code of a direction's next frame; its number reveals a lost or moved one."""
    return hmac.digest(key, next(numbers).to_bytes(8, "big") + message, "sha256")


def _not_a_frame(begins: bytes, bytes_max: int) -> str:
    """Say what a peer seems to speak if it does not begin with the length of a message."""
    if begins[:2] in {b"\x80\x01", b"\x82\x21"}:
        return (
            "a message without a frame: this server speaks Thrift's binary protocol in "
            "framed transport"
        )
    if begins in {b"GET ", b"POST", b"HEAD", b"PUT ", b"PRI "}:
        return "HTTP, and not Thrift's binary protocol in framed transport"
    if begins[:2] == b"\x16\x03":
        return "TLS, but this server expects plain Thrift"
    size = int.from_bytes(begins, "big", signed=True)
    return f"a message of {size} bytes: not Thrift in framed transport, or over {bytes_max}"


class Channel:
    """A connected socket that carries frames; it owns the socket from the start."""

    def __init__(self, sock: socket.socket) -> None:
        try:
            # Send without delay, and notice a peer whose machine is gone.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE:
                if hasattr(socket, name):
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        except OSError:
            sock.close()
            raise
        self._sock = sock
        self._received = bytearray()
        self._interrupted = False
        self._seals: tuple[Seal, Seal] | None = None

    def receive(
        self,
        deadline: float,
        *,
        frame_seconds: float | None = None,
        bytes_max: int = FRAME_BYTES_MAX,
    ) -> bytes:
        """Read one frame by `deadline` (monotonic seconds).

        With `frame_seconds`, only the first byte has that deadline, and the rest these seconds.
        """
        if not self._received:
            self._receive_some(deadline)
        if frame_seconds is not None:
            deadline = monotonic() + frame_seconds
        self._receive_until(_HEADER_BYTES, deadline)
        size = int.from_bytes(self._received[:_HEADER_BYTES], "big", signed=True)
        most = bytes_max + (_SEAL_BYTES if self._seals is not None else 0)
        if not 0 <= size <= most:
            raise IncompatiblePeer(_not_a_frame(bytes(self._received[:_HEADER_BYTES]), bytes_max))
        end = _HEADER_BYTES + size
        self._receive_until(end, deadline)
        frame = bytes(self._received[_HEADER_BYTES:end])
        del self._received[:end]
        return frame if self._seals is None else _opened(frame, self._seals[1])

    def send(self, message: bytes, deadline: float) -> None:
        """Write one frame by `deadline`; raises TimeoutError or another OSError."""
        if len(message) > FRAME_BYTES_MAX:
            raise ValueError(f"a message of {len(message)} bytes is over {FRAME_BYTES_MAX}")
        if self._seals is not None:
            message += self._seals[0](message)
        self._sock.settimeout(_left(deadline))
        self._sock.sendall(len(message).to_bytes(_HEADER_BYTES, "big") + message)

    def peek(self, deadline: float) -> int:
        """Return the first byte that the peer sent, without consuming it."""
        self._sock.settimeout(_left(deadline))
        first = self._sock.recv(1, socket.MSG_PEEK)
        if not first:
            raise Closed(midway=False)
        return first[0]

    def secure(
        self, context: ssl.SSLContext, deadline: float, *, server_hostname: str | None = None
    ) -> None:
        """Continue under TLS as the caller of `server_hostname`; as the server if it is None."""
        serving = server_hostname is None
        self._sock = context.wrap_socket(
            self._sock,
            server_side=serving,
            do_handshake_on_connect=False,
            server_hostname=server_hostname,
        )
        if self._interrupted:  # it may have reached the socket that we just replaced
            raise Closed(midway=False)
        self._sock.settimeout(_left(deadline))
        try:
            self._sock.do_handshake()
        except ssl.SSLError:
            if serving:
                self._part()
            raise

    def seal(self, sending_key: bytes, receiving_key: bytes) -> None:
        """From now on, authenticate outgoing messages, and accept only authenticated ones.

        So an attacker between the peers can read messages, but not alter, add, drop or repeat them.
        """
        self._seals = partial(_code, sending_key, count(1)), partial(_code, receiving_key, count(1))

    def interrupt(self) -> None:
        """Wake a thread that waits on the socket; closing alone would not wake it."""
        self._interrupted = True
        with contextlib.suppress(OSError):
            # Not the TLS socket's own method, which would leave the reader without its TLS.
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket; you may call it twice."""
        self._sock.close()

    def _part(self) -> None:
        """Let the peer read why we refused it."""
        # Closing a socket with unread bytes sends a reset, which discards the bytes that the peer
        # has not read yet. So we first read the bytes that it still sends, within limits.
        deadline = monotonic() + _PARTING_SECONDS
        with contextlib.suppress(OSError), socket.socket(fileno=self._sock.detach()) as bare:
            bare.shutdown(socket.SHUT_WR)
            for _ in range(16):
                bare.settimeout(_left(deadline))
                if not bare.recv(_CHUNK_BYTES):
                    return

    def _receive_until(self, size: int, deadline: float) -> None:
        while len(self._received) < size:
            self._receive_some(deadline)

    def _receive_some(self, deadline: float) -> None:
        self._sock.settimeout(_left(deadline))
        some = self._sock.recv(_CHUNK_BYTES)
        if not some:
            raise Closed(midway=bool(self._received))
        self._received += some


def is_accelerated() -> bool:
    """Whether thrift's C extension is installed."""
    # Measured: 60,000 indices in a list take 2.8 ms with the C extension and 53 ms without it.
    try:
        from thrift.protocol import fastbinary  # noqa: F401
    except ImportError:
        return False
    return True


def accelerated(message: bytes | None = None) -> tuple[Any, TMemoryBuffer]:
    """Return a protocol that reads `message`, or one that writes, and the buffer beneath it."""
    buffer = TMemoryBuffer(message)
    protocol = TBinaryProtocolAccelerated(
        buffer,
        fallback=True,
        string_length_limit=FRAME_BYTES_MAX,
        container_length_limit=_ITEMS_MAX,
    )
    return protocol, buffer


def _opened(frame: bytes, seal: Seal) -> bytes:
    message, mark = frame[:-_SEAL_BYTES], frame[-_SEAL_BYTES:]
    if not hmac.compare_digest(mark, seal(message)):
        raise IncompatiblePeer("a message that changed on its way from the peer")
    return message


def _left(deadline: float) -> float:
    left = deadline - monotonic()
    if left <= 0:
        raise TimeoutError("the deadline passed")
    return left
