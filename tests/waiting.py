"""Waiting for what other processes do, and ports for them."""

import socket
import time
from collections.abc import Callable


def until(look: Callable[[], object], seconds: float = 100, every_seconds: float = 0.05) -> None:
    """Look again and again until it is so; fail when the time is over."""
    deadline = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < deadline, "it did not come to that in time"
        time.sleep(every_seconds)


def free_ports(number: int) -> list[int]:
    """Return ports that nothing listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
