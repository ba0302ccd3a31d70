"""A line carries what is said, holds it back when it is cut, and goes on when it is mended."""

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.chaos.line import HOST, Line

PATIENCE_SECONDS = 20.0


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Who is called."""
    with socket.create_server((HOST, 0)) as made:
        made.settimeout(PATIENCE_SECONDS)
        yield made


@pytest.fixture
def line(listener: socket.socket) -> Iterator[Line]:
    """A line that leads there."""
    with closing(Line(*listener.getsockname())) as made:
        yield made


def call(line: Line) -> socket.socket:
    """Call over a line."""
    return socket.create_connection((HOST, line.port), PATIENCE_SECONDS)


def test_bytes_held_back_come_later(listener: socket.socket, line: Line) -> None:
    """Of connections that were there, and of those that are made meanwhile."""
    with call(line) as before:
        first, _ = listener.accept()
        line.hold()
        before.sendall(b"before")
        with first, call(line) as during:
            during.sendall(b"during")
            first.settimeout(0.1)
            with pytest.raises(TimeoutError):
                first.recv(1)
            line.mend()
            first.settimeout(PATIENCE_SECONDS)
            assert first.recv(6) == b"before"
            second, _ = listener.accept()
            with second:
                assert second.recv(6) == b"during"


def test_a_snapped_line_breaks_connections_and_lets_nobody_through(
    listener: socket.socket, line: Line
) -> None:
    """Until it is mended."""
    with call(line) as before:
        first, _ = listener.accept()
        with first:
            line.snap()
            for end in (before, first):
                end.settimeout(PATIENCE_SECONDS)
                assert broken(end)
    assert not gets_through(line)
    line.mend()
    with call(line) as after:
        after.sendall(b"after")
        while True:  # the one that was broken may have come through, without a word
            called, _ = listener.accept()
            with called:
                if said := called.recv(5):
                    break
        assert said == b"after"


def gets_through(line: Line) -> bool:
    """Whether a call is not broken at once, be it while it is made or after."""
    try:
        with call(line) as caller:
            return not broken(caller)
    except ConnectionError:
        return False


def broken(end: socket.socket) -> bool:
    """Whether a connection ends, in whatever way."""
    try:
        return end.recv(1) == b""
    except ConnectionError:
        return True
