"""Links: named profiles, and the switch that all hosts of a lab hang on.

The switch is a bridge in a network namespace of its own. Each host has a cable to it. The kernel
limits the rate at both ends of a cable, with a short queue (`tc`, token bucket); the cable delays
and loses (`wire.py`), because many kernels lack netem. Large segments stay about a millisecond long
at the link's rate, so that small messages slip in between, as they do on a real link.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import IO

from tests.lab.failing import NoLab, run

NETWORK = "10.66.0"
"""Of the hosts' addresses; nobody outside of the lab sees them."""

_WIRE = Path(__file__).with_name("wire.py")
_BRIDGE = "switch"
_SEGMENT_SECONDS = 0.001
_SEGMENT_BYTES = (1514, 65_536)
_QUEUE_SECONDS = 0.02
_QUEUE_BYTES = 32 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkProfile:
    """How links are: the rate of each, and what lies between any two hosts.

    A packet takes half of the round trip each way, give or take the jitter, and never overtakes
    another one. `loss` is the share of packets that are lost each way.
    """

    bits_per_second: int
    round_trip_seconds: float
    jitter_seconds: float = 0.0
    loss: float = 0.0


PROFILES: Mapping[str, LinkProfile] = MappingProxyType(
    {
        "switch": LinkProfile(bits_per_second=1_000_000_000, round_trip_seconds=0.0003),
        "old-switch": LinkProfile(bits_per_second=100_000_000, round_trip_seconds=0.0005),
        "wifi": LinkProfile(
            bits_per_second=40_000_000, round_trip_seconds=0.004, jitter_seconds=0.001, loss=0.005
        ),
        "two-sites": LinkProfile(bits_per_second=20_000_000, round_trip_seconds=0.02),
    }
)


def profile_named(name: str) -> LinkProfile:
    """Return a profile; raises NoLab if there is none of that name."""
    if name not in PROFILES:
        raise NoLab(f"there is no profile {name!r}; there are {', '.join(PROFILES)}")
    return PROFILES[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes of whole frames as a host's kernel counts them; a large segment has one header."""

    sent_bytes: int = 0
    received_bytes: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            sent_bytes=self.sent_bytes + other.sent_bytes,
            received_bytes=self.received_bytes + other.received_bytes,
        )

    def __sub__(self, other: Traffic) -> Traffic:
        return Traffic(
            sent_bytes=self.sent_bytes - other.sent_bytes,
            received_bytes=self.received_bytes - other.received_bytes,
        )


def traffic_of(process: int) -> Traffic:
    """Return what has gone over the link of a host in which a process runs."""
    for line in Path(f"/proc/{process}/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == "eth0":
            fields = counts.split()
            return Traffic(sent_bytes=int(fields[8]), received_bytes=int(fields[0]))
    return Traffic()


class Switch:
    """The bridge and the cables; from its making until `close`, or the end of this process."""

    def __init__(self) -> None:
        command = ["unshare", "--net", sys.executable, "-I", "-S", str(_WIRE)]
        self._wire = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C in a terminal is for the lab
        )
        self._asking = Lock()
        try:
            self._ask("hello")
            self._ip(
                f"link add {_BRIDGE} type bridge mcast_snooping 0",
                f"link set {_BRIDGE} addrgenmode none",
                f"link set {_BRIDGE} up",
            )
        except NoLab:
            self.close()
            raise

    @property
    def process(self) -> int:
        """The ID of the process that holds the cables."""
        return self._wire.pid

    def plug(self, host: str, number: int, process: int, profile: LinkProfile) -> None:
        """Give a host, in which a process runs, an interface `eth0` with a cable to here."""
        near, far = f"near{number}", f"port{number}"
        self._ask("plug", host=host, near=near, far=far)
        ethernet = f"02:00:00:00:00:{number:02x}"
        self._ip(
            # First of all: an interface that is up has an address of its own, and asks for routers.
            f"link set {near} addrgenmode none",
            f"link set {far} addrgenmode none",
            f"link set {near} netns {process} name eth0 address {ethernet}",
            f"link set {far} master {_BRIDGE} up",
        )
        enter = ("nsenter", f"--net=/proc/{process}/ns/net")
        lines = [
            "link set lo up",
            "link set eth0 addrgenmode none",
            "link set eth0 up",
            f"address add {NETWORK}.{number}/24 dev eth0",
        ]
        run(*enter, "ip", "-batch", "-", text="\n".join(lines))
        self.limit(number, process, profile.bits_per_second)
        self._ask(
            "shape",
            host=host,
            delay_seconds=profile.round_trip_seconds / 2,
            jitter_seconds=profile.jitter_seconds,
            loss=profile.loss,
        )

    def limit(self, number: int, process: int, bits_per_second: int) -> None:
        """Limit the rate of a host's cable, in each direction."""
        low, high = _SEGMENT_BYTES
        segment = max(low, min(high, int(bits_per_second / 8 * _SEGMENT_SECONDS)))
        # A burst takes a whole segment, with the headers that the kernel counts for its parts.
        burst = segment + segment // 4 + 3000
        queue = max(_QUEUE_BYTES, int(bits_per_second / 8 * _QUEUE_SECONDS))
        shape = f"root tbf rate {bits_per_second}bit burst {burst} limit {queue + burst}"
        for inside, device in ((process, "eth0"), (self.process, f"port{number}")):
            enter = ("nsenter", f"--net=/proc/{inside}/ns/net")
            run(*enter, "ip", "link", "set", device, "gso_max_size", segment)
            run(*enter, "tc", "qdisc", "replace", "dev", device, *shape.split())

    def unplug(self, host: str) -> None:
        """Take a host's cable away."""
        self._ask("unplug", host=host)

    def fault(self, host: str, way: str, peer: int, drop: float, late_seconds: float) -> None:
        """Lose or delay what a host exchanges with another one (0: with any), "in" or "out"."""
        self._ask("fault", host=host, way=way, peer=peer, drop=drop, late_seconds=late_seconds)

    def heal(self, host: str) -> None:
        """Forget a cable's faults."""
        self._ask("heal", host=host)

    def close(self) -> None:
        for pipe in (self._wire.stdin, self._wire.stdout, self._wire.stderr):
            opened(pipe).close()
        self._wire.kill()
        self._wire.wait()

    def _ask(self, what: str, **about: object) -> None:
        with self._asking:
            try:
                asking = opened(self._wire.stdin)
                asking.write(json.dumps({"do": what, **about}) + "\n")
                asking.flush()
                answer = opened(self._wire.stdout).readline()
            except BrokenPipeError:
                answer = ""
        if not answer:
            raise NoLab(" ".join(opened(self._wire.stderr).read().split()) or "the wire has ended")
        if answer.strip():
            raise NoLab(f"the wire cannot {what}: {answer.strip()}")

    def _ip(self, *lines: str) -> None:
        enter = ("nsenter", f"--net=/proc/{self.process}/ns/net")
        run(*enter, "ip", "-batch", "-", text="\n".join(lines))


def opened(pipe: IO[str] | None) -> IO[str]:
    """Return a pipe that a process was started with."""
    assert pipe is not None
    return pipe
