"""The cables of a lab: one process that holds both ends of each, and passes Ethernet frames on.

A cable has two TAP interfaces: one goes into a host, the other is a port of the switch. The
kernel limits the rate (`tc`, see `links.py`). This process adds what kernels without netem cannot:
delay, jitter and loss, and faults between two hosts. It passes large segments on whole, as network
cards do, unless packets are to be lost: then each is lost by itself.

The lab runs this file as a script in a network namespace of its own. Requests are lines of JSON on
standard input, and each is answered by a line: empty,
or what went wrong. The process ends with its input, so that no killed
lab leaves it behind. Interfaces end with the process.
"""

import fcntl
import gc
import json
import os
import select
import struct
import sys
import time
from collections import deque
from contextlib import suppress
from random import Random
from typing import Any

_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_TAP = 0x0002 | 0x1000 | 0x4000  # IFF_TAP, IFF_NO_PI, IFF_VNET_HDR
_WHOLE_SEGMENTS = 0x01 | 0x02 | 0x04  # TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6
_HEADER_BYTES = 10  # struct virtio_net_hdr
_FRAME_BYTES = _HEADER_BYTES + 65_536 + 18
_IPV4 = b"\x08\x00"
_AT_ONCE = 64
_ANY = 0
# What a wait and two passes cost beside the delay itself; measured, on two processors of a server.
_OWN_SECONDS = 75e-6


class Way:
    """One direction of a cable: frames that are under way, and what happens to them.

    `faults` maps the number of the host at the far end (0: any) to the share of its packets that is
    lost, and the seconds by which the others are late.
    """

    def __init__(self, source: int, target: int, peer_at: int) -> None:
        self.source = source
        self.target = target
        self.delay_seconds = 0.0
        self.jitter_seconds = 0.0
        self.loss = 0.0
        self.faults: dict[int, tuple[float, float]] = {}
        self._peer_at = peer_at
        self._due: deque[tuple[float, bytes]] = deque()
        self._late: list[tuple[float, bytes]] = []
        self._random = Random()

    @property
    def loses(self) -> bool:
        """Whether packets may be lost, so that each has to come by itself."""
        return self.loss > 0 or any(drop for drop, _ in self.faults.values())

    def take(self) -> bool:
        """Take what has come; returns whether the cable is still there."""
        for _ in range(_AT_ONCE):
            try:
                frame = os.read(self.source, _FRAME_BYTES)
            except BlockingIOError:
                return True
            except OSError:
                return False
            self._send(frame, time.monotonic())
        return True

    def deliver(self, now: float) -> float:
        """Deliver what is due; returns when the next frame is."""
        due = self._due
        while due and due[0][0] <= now:
            self._write(due.popleft()[1])
        late = self._late
        while late and late[0][0] <= now:
            self._write(late.pop(0)[1])
        first = due[0][0] if due else float("inf")
        return min(first, late[0][0]) if late else first

    def _send(self, frame: bytes, now: float) -> None:
        if self.loss and self._random.random() < self.loss:
            return
        when = now + self.delay_seconds
        if self.jitter_seconds:
            when += self._random.uniform(-self.jitter_seconds, self.jitter_seconds)
        if self.faults and frame[_HEADER_BYTES + 12 : _HEADER_BYTES + 14] == _IPV4:
            drop, late_seconds = self._fault(frame)
            if drop and self._random.random() < drop:
                return
            if late_seconds:  # in a queue of its own: it holds up nobody else's
                self._late.append((when + late_seconds, frame))
                self._late.sort(key=lambda each: each[0])
                return
        # A cable keeps the order of its frames, whatever the jitter.
        if self._due and when < self._due[-1][0]:
            when = self._due[-1][0]
        if when <= now and not self._due:
            self._write(frame)
        else:
            self._due.append((when, frame))

    def _fault(self, frame: bytes) -> tuple[float, float]:
        """Add up what holds for all hosts, and for the one at the far end."""
        peer = frame[_HEADER_BYTES + self._peer_at]
        everybody = self.faults.get(_ANY, (0.0, 0.0))
        one = self.faults.get(peer, (0.0, 0.0))
        return 1 - (1 - everybody[0]) * (1 - one[0]), everybody[1] + one[1]

    def _write(self, frame: bytes) -> None:
        with suppress(OSError):  # the interface is down, or gone with its host
            os.write(self.target, frame)


class Cable:
    """Both directions between a host and its port of the switch."""

    def __init__(self, near: str, far: str) -> None:
        self.near, self.far = _tap(near), _tap(far)
        # The last byte of an Ethernet address is the host's number: the receiver's comes first.
        self.ways = {"out": Way(self.near, self.far, 5), "in": Way(self.far, self.near, 11)}

    def fit_segments(self) -> None:
        """Let large segments through whole, unless packets are lost here."""
        loses = any(way.loses for way in self.ways.values())
        for end in (self.near, self.far):
            with suppress(OSError):
                fcntl.ioctl(end, _TUNSETOFFLOAD, 0 if loses else _WHOLE_SEGMENTS)

    def close(self) -> None:
        os.close(self.near)
        os.close(self.far)


class Wire:
    """All cables of a lab, by the name of the host."""

    def __init__(self) -> None:
        self._cables: dict[str, Cable] = {}
        self._ways: dict[int, Way] = {}
        self._asked = b""

    def run(self) -> None:
        """Pass frames on until the input ends."""
        asking = sys.stdin.fileno()
        ways = self._ways
        until = float("inf")
        while True:
            wait = None if until == float("inf") else max(until - time.monotonic(), 0.0)
            for source in select.select([asking, *ways], [], [], wait)[0]:
                if source == asking:
                    if not self._answer(os.read(asking, 65_536)):
                        return
                elif source in ways and not ways[source].take():
                    self._lose(source)
            now = time.monotonic()
            until = min((way.deliver(now) for way in ways.values()), default=float("inf"))

    def _answer(self, text: bytes) -> bool:
        *lines, self._asked = (self._asked + text).split(b"\n")
        for line in lines:
            request: dict[str, Any] = json.loads(line)
            try:
                getattr(self, f"do_{request.pop('do')}")(**request)
                said = ""
            except (OSError, KeyError) as error:
                said = f"{type(error).__name__}: {error}"
            sys.stdout.write(said.replace("\n", " ") + "\n")
            sys.stdout.flush()
        return bool(text)

    def do_hello(self) -> None:
        """Answer."""

    def do_plug(self, host: str, near: str, far: str) -> None:
        """Make a cable; its ends are interfaces of this namespace at first."""
        self._cables[host] = cable = Cable(near, far)
        self._ways |= {way.source: way for way in cable.ways.values()}
        cable.fit_segments()

    def do_unplug(self, host: str) -> None:
        cable = self._cables.pop(host)
        for way in cable.ways.values():
            self._ways.pop(way.source, None)
        cable.close()

    def do_shape(self, host: str, delay_seconds: float, jitter_seconds: float, loss: float) -> None:
        """Say what happens to every frame on its way into a host, so once from host to host."""
        way = self._cables[host].ways["in"]
        way.delay_seconds = max(delay_seconds - _OWN_SECONDS, 0.0)
        way.jitter_seconds, way.loss = jitter_seconds, loss
        self._cables[host].fit_segments()

    def do_fault(self, host: str, way: str, peer: int, drop: float, late_seconds: float) -> None:
        """Lose or delay what one host, or every host (0), exchanges with this one."""
        faults = self._cables[host].ways[way].faults
        faults[peer] = drop, late_seconds
        if not drop and not late_seconds:
            del faults[peer]
        self._cables[host].fit_segments()

    def do_heal(self, host: str) -> None:
        """Forget all faults of a cable."""
        for way in self._cables[host].ways.values():
            way.faults.clear()
        self._cables[host].fit_segments()

    def _lose(self, source: int) -> None:
        """Stop to listen at an end whose host is gone; the lab unplugs the rest."""
        self._ways.pop(source, None)


def _tap(name: str) -> int:
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TAP))
    return end


def main() -> None:
    """Serve one lab."""
    gc.disable()  # there are no cycles, and a pause is a delay that nobody asked for
    with suppress(OSError):  # first in line for a processor, or delays grow with the load
        os.setpriority(os.PRIO_PROCESS, 0, -20)
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    Wire().run()


if __name__ == "__main__":
    main()
