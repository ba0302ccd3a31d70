"""Frames over a socket pair: whole, in time, and never larger than announced."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from time import monotonic

import pytest

from downpour.base.errors import IncompatiblePeer
from downpour.network.rpc import frames

Pair = tuple[socket.socket, frames.Channel]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A raw end, and a channel at the other."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        raw = socket.create_connection(listener.getsockname())
        channel = frames.Channel(listener.accept()[0])
    yield raw, channel
    raw.close()
    channel.close()


def soon() -> float:
    """A deadline that a healthy test never meets."""
    return monotonic() + 20


def test_frames_arrive_in_order(pair: Pair) -> None:
    """Two frames in one piece are two frames, and an empty one is a frame."""
    raw, channel = pair
    raw.sendall(b"\0\0\0\3abc\0\0\0\0\0\0\0\1d")
    assert [channel.receive(soon()) for _ in range(3)] == [b"abc", b"", b"d"]


def test_a_frame_reads_as_it_was_sent(pair: Pair) -> None:
    """Length first, most significant byte first."""
    raw, channel = pair
    channel.send(b"abc", soon())
    assert raw.recv(100) == b"\0\0\0\3abc"


@pytest.mark.parametrize("header", [b"\xff\xff\xff\xff", b"\x01\x00\x00\x01", b"GET "])
def test_an_impossible_length_is_no_frame(pair: Pair, header: bytes) -> None:
    """Negative, over the limit, or not Thrift at all: nothing more is read."""
    raw, channel = pair
    raw.sendall(header)
    with pytest.raises(IncompatiblePeer, match="not Thrift"):
        channel.receive(soon())


def test_half_a_frame_ends_at_its_deadline(pair: Pair) -> None:
    """Silence after the first bytes is a TimeoutError."""
    raw, channel = pair
    raw.sendall(b"\0\0\0\3a")
    with pytest.raises(TimeoutError):
        channel.receive(monotonic() + 0.05)


def test_a_frame_has_its_own_time_once_it_began(pair: Pair) -> None:
    """A patient reader of first bytes is not patient with the rest."""
    raw, channel = pair
    raw.sendall(b"\0\0")
    with pytest.raises(TimeoutError):
        channel.receive(soon(), frame_seconds=0.05)


@pytest.mark.parametrize(("sent", "midway"), [(b"", False), (b"\0", True), (b"\0\0\0\3a", True)])
def test_a_closed_peer_is_told_apart_from_a_torn_message(
    pair: Pair, sent: bytes, *, midway: bool
) -> None:
    """Between frames a peer may go; in the middle of one it may not."""
    raw, channel = pair
    raw.sendall(sent)
    raw.close()
    with pytest.raises(frames.Closed) as caught:
        channel.receive(soon())
    assert caught.value.midway is midway


def test_an_oversized_frame_is_never_sent(pair: Pair) -> None:
    """What the peer would drop does not leave."""
    _, channel = pair
    with pytest.raises(ValueError, match="over"):
        channel.send(bytes(frames.FRAME_BYTES_MAX + 1), soon())
