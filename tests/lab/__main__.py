"""A lab by hand: `python -m tests.lab PROFILE HOSTS` until Ctrl-C, `python -m tests.lab measure`.

The first prints the hosts, how to enter one, and how to train on all of them. The second prints
what was asked of each profile's links, and how they behave.
"""

import shlex
import signal
import sys
import time
from threading import Event

from tests.lab.failing import NoLab
from tests.lab.lab import Lab
from tests.lab.links import PROFILES
from tests.lab.measure import pinged, sent

_ROW = "{:<11} {:>10} {:>10} {:>10} {:>10} {:>10} {:>8} {:>8} {:>6}"
_HEAD = ("profile", "Mbit/s", "there", "back", "ms", "measured", "loss %", "lost %", "CPU %")


def main(words: list[str]) -> int:
    """Do what the command line says; returns the exit status."""
    profile, hosts = [*words, *("old-switch", "3")[len(words) :]][:2]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if profile == "measure":
            _measure()
        else:
            _stay(profile, _number(hosts))
    except NoLab as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 0
    return 0


def _number(hosts: str) -> int:
    if not hosts.isascii() or not hosts.isdigit():
        raise NoLab(f"hosts = {hosts!r} must be a number")
    return int(hosts)


def _stay(profile: str, hosts: int) -> None:
    """Keep a lab up until somebody ends it."""
    began = time.monotonic()
    with Lab(profile, hosts=hosts) as lab:
        _say(f"{profile}: up in {time.monotonic() - began:.1f} s; Ctrl-C takes it down")
        for path in lab.removed:
            _say(f"removed what a killed lab has left: {path}")
        for host in [*lab, lab["store"]]:
            _say(f"\n{host.name} {host.address}\n  {host.entering}")
        train = [sys.executable, "-m", "downpour", "run", "--on", "ssh"]
        train += ["--hosts", str(lab.hosts_file), "--shared", str(lab.folder)]
        train += ["--workers", str(hosts)]
        _say(f"\nIn pc1, train on all of them:\n  {shlex.join(train)}")
        try:
            Event().wait()
        finally:
            _say(f"\n{lab.traffic()}")


def _measure() -> None:
    """Print a line for each profile."""
    _say(_ROW.format(*_HEAD))
    for name, asked in PROFILES.items():
        with Lab(name, hosts=2, shared="nothing") as lab:
            round_trip, _ = pinged(lab["pc1"], lab["pc2"], 200, 0.01)
            _, lost = pinged(lab["pc1"], lab["pc2"], 2000, 0.001)
            used, began = lab.wire_seconds(), time.monotonic()
            there = sent(lab["pc1"], lab["pc2"], 4)
            load = (lab.wire_seconds() - used) / (time.monotonic() - began)
            back = sent(lab["pc2"], lab["pc1"], 4)
        bits = (asked.bits_per_second, there, back)
        row = [name, *(f"{each / 1e6:.1f}" for each in bits)]
        row += [f"{each * 1e3:.2f}" for each in (asked.round_trip_seconds, round_trip)]
        # What is lost of round trips was lost on either way.
        both_ways = 1 - (1 - asked.loss) ** 2
        row += [f"{each * 100:.2f}" for each in (both_ways, lost)]
        _say(_ROW.format(*row, f"{load * 100:.0f}"))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
