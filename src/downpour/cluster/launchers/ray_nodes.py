"""Finds lost Ray nodes, seconds before Ray reports them.

Ray counts missed heartbeats, and needs 15 s or more. A connection to a node's raylet ends sooner:
at once if the raylet dies, because the node's kernel says so, and within seconds if the machine
dies.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

_CONNECT_SECONDS = 1.0
_KEEPALIVE = (
    {socket.TCP_KEEPIDLE: 1, socket.TCP_KEEPINTVL: 1, socket.TCP_KEEPCNT: 10}
    if sys.platform == "linux"
    else {}
)
"""A machine counts as gone when its kernel has not answered for 10 s; shorter cuts do no harm."""
_READ_BYTES = 65536


class NodeWatch:
    """Holds a connection to each node that the caller wants to watch."""

    def __init__(self) -> None:
        self._raylets: dict[str, tuple[str, int]] = {}
        self._connections: dict[str, socket.socket] = {}
        self.gone: set[str] = set()

    @property
    def watched(self) -> set[str]:
        """The IDs of the nodes that it watches, or watched until they were gone."""
        return set(self._raylets)

    def watch(self, nodes: Iterable[dict[str, Any]]) -> None:
        """Watch further nodes, as `ray.nodes()` describes them; skips unreachable ones."""
        for node in nodes:
            name = str(node["NodeID"])
            self._raylets[name] = str(node["NodeManagerAddress"]), int(node["NodeManagerPort"])
            self._connect(name)

    def look(self) -> set[str]:
        """Return the IDs of the nodes that are gone since the last look."""
        ended = {name for name, line in self._connections.items() if _has_ended(line)}
        for name in ended:
            self._connections.pop(name).close()
            self._connect(name)  # a raylet may also end an idle connection
        gone = ended - self._connections.keys()
        self.gone |= gone
        return gone

    def close(self) -> None:
        """End all connections."""
        for line in self._connections.values():
            line.close()
        self._connections.clear()

    def _connect(self, name: str) -> None:
        with suppress(OSError):
            line = socket.create_connection(self._raylets[name], _CONNECT_SECONDS)
            line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, number in _KEEPALIVE.items():
                line.setsockopt(socket.IPPROTO_TCP, option, number)
            line.settimeout(0.0)
            self._connections[name] = line


def _has_ended(line: socket.socket) -> bool:
    """Whether the other side has ended a connection; discards all data from it."""
    try:
        while line.recv(_READ_BYTES):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
