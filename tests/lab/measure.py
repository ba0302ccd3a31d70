"""How the links of a lab behave, measured from host to host; runs as a script on the hosts, too.

`ping` counts what comes back, and how long it takes: the far kernel answers. `send` counts what a
program at the far end has received over one TCP connection.
"""

from __future__ import annotations

import json
import os
import select
import socket
import statistics
import struct
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.lab.hosts import LabHost

_PORT = 5201
_PIECE_BYTES = 256 * 1024
_ECHO, _ECHO_REPLY = 8, 0
_LATE_SECONDS = 0.5


def pinged(near: LabHost, far: LabHost, count: int, every_seconds: float) -> tuple[float, float]:
    """Return the median round trip in seconds, and the share of packets that did not come back."""
    words = ("ping", far.address, count, every_seconds)
    median_seconds, lost = json.loads(_here(near, *words))
    return float(median_seconds), float(lost)


def sent(near: LabHost, far: LabHost, seconds: float) -> float:
    """Return the bits per second that one connection takes from one host to another."""
    with far.start(sys.executable, "-I", "-S", Path(__file__), "receive") as receiver:
        try:
            assert receiver.stdout is not None
            receiver.stdout.readline()
            return float(_here(near, "send", far.address, seconds))
        finally:
            receiver.kill()


def _here(host: LabHost, *words: object) -> str:
    return host.run(sys.executable, "-I", "-S", Path(__file__), *words)


def ping(address: str, count: int, every_seconds: float) -> tuple[float, float]:
    """Send echo requests at regular moments, whether answers come or not."""
    line = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    line.connect((address, 0))
    own = os.getpid() & 0xFFFF
    sent_at: dict[int, float] = {}
    took: list[float] = []
    first = time.monotonic()
    while len(took) < count:
        now = time.monotonic()
        if len(sent_at) < count and now >= first + len(sent_at) * every_seconds:
            number = len(sent_at)
            sent_at[number] = time.monotonic()
            line.send(_echo(own, number))
            continue
        end = first + count * every_seconds + _LATE_SECONDS
        next_at = first + len(sent_at) * every_seconds if len(sent_at) < count else end
        if now >= end:
            break
        if select.select([line], [], [], max(next_at - now, 0.0))[0]:
            kind, identity, number = struct.unpack("!20xBxxxHH", line.recv(2048)[:28])
            if (kind, identity) == (_ECHO_REPLY, own) and number in sent_at:
                took.append(time.monotonic() - sent_at[number])
    return statistics.median(took) if took else float("inf"), 1 - len(took) / count


def _echo(identity: int, number: int) -> bytes:
    """Return an echo request, with the internet checksum of its words."""
    words = (_ECHO << 8, identity, number)
    total = sum(words)
    total = (total & 0xFFFF) + (total >> 16)
    return struct.pack("!4H", words[0], ~total & 0xFFFF, identity, number)


def send(address: str, seconds: float) -> float:
    """Send for a while; returns the bits per second until the far end has told that it has all."""
    with socket.create_connection((address, _PORT)) as line:
        # So that the end does not wait for much that the kernel has taken and not sent.
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _PIECE_BYTES)
        piece, count, began = bytes(_PIECE_BYTES), 0, time.monotonic()
        while time.monotonic() - began < seconds:
            count += line.send(piece)
        line.shutdown(socket.SHUT_WR)
        assert line.recv(1) == b"k"
        return count * 8 / (time.monotonic() - began)


def receive() -> None:
    """Take what one connection brings, and say at its end that all is there."""
    with socket.create_server(("", _PORT)) as server:
        sys.stdout.write("up\n")
        sys.stdout.flush()
        line, _ = server.accept()
        with line:
            while line.recv(_PIECE_BYTES):
                pass
            line.sendall(b"k")


def main(what: str, *words: str) -> None:
    """Do one of the three, and print what came of it."""
    if what == "ping":
        sys.stdout.write(json.dumps(ping(words[0], int(words[1]), float(words[2]))))
    elif what == "send":
        sys.stdout.write(str(send(words[0], float(words[1]))))
    else:
        receive()


if __name__ == "__main__":
    main(*sys.argv[1:])
