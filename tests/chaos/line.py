"""A line between two processes of this machine, which can be cut."""

import socket
import struct
from contextlib import suppress
from random import SystemRandom
from threading import Event, Lock, Thread

HOST = "127.0.0.1"
_PORTS = SystemRandom()
_RESET = struct.pack("ii", 1, 0)


def free_port() -> int:
    """A port at which nobody listens; none of those that the system gives away itself."""
    while True:
        port = _PORTS.randrange(20_000, 30_000)
        with suppress(OSError), socket.create_server((HOST, port)):
            return port


class Line:
    """Carries connections that are made to `port` to another port, until it is closed."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._listener = socket.create_server((HOST, 0), backlog=128)
        self.port = int(self._listener.getsockname()[1])
        self._whole = Event()
        self._whole.set()
        self._snapped = self._closed = False
        self._lock = Lock()
        self._ends: set[socket.socket] = set()
        Thread(target=self._accept, daemon=True).start()

    def hold(self) -> None:
        """Hold back all that is said, and let nobody through; nothing is lost."""
        self._whole.clear()

    def snap(self) -> None:
        """Break every connection, and those that are made from now on."""
        with self._lock:
            self._snapped = True
            for end in self._ends:
                _reset(end)

    def mend(self) -> None:
        """Go on, with what was held back first."""
        self._snapped = False
        self._whole.set()

    def close(self) -> None:
        self._closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.snap()
        self._whole.set()

    def _accept(self) -> None:
        with suppress(OSError):
            while not self._closed:
                near, _ = self._listener.accept()
                self._whole.wait()
                self._carry(near)

    def _carry(self, near: socket.socket) -> None:
        """Make the other half of a connection, and move what is said in both directions."""
        far = socket.socket()
        with self._lock:
            self._ends |= {near, far}
            if self._snapped:
                _reset(near)
        try:
            far.connect(self._target)
        except OSError:
            self._drop(near, far)
            return
        for one, other in ((near, far), (far, near)):
            Thread(target=self._pump, args=(one, other), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while said := source.recv(65536):
                self._whole.wait()
                sink.sendall(said)
        self._whole.wait()
        self._drop(source, sink)

    def _drop(self, *ends: socket.socket) -> None:
        """Close both ends, each once, so that both sides see that it is over."""
        with self._lock:
            for end in ends:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()
                self._ends.discard(end)


def _reset(end: socket.socket) -> None:
    """End a connection with an error at the other side; wakes whoever reads here."""
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        end.shutdown(socket.SHUT_RDWR)
