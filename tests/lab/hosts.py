"""A host of a lab: namespaces that a first process keeps, a share of the machine, and a link.

The first process reads a pipe of the lab's and does nothing else. When it ends, because the host is
killed or the lab has ended in whatever way, the kernel kills every process of the host, and its
network and mounts are gone.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

import psutil

from tests.lab.failing import NoLab
from tests.lab.links import NETWORK, LinkProfile, Switch, Traffic, opened, traffic_of
from tests.lab.shares import HostShare

_FIRST = """
set -e
mount -t proc proc /proc
mount --bind {passwd} /etc/passwd
mount --bind {hosts} /etc/hosts
hostname {name}
trap '' CHLD
echo up
exec cat >/dev/null
"""
_NAMESPACES = ("--net", "--mount", "--pid", "--uts", "--ipc")


class HostProcess(subprocess.Popen[str]):
    """A program that runs on a host; a signal reaches all of its process group."""

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, sig)


class LabHost:
    """One host: `name` is how the others call it, `address` where it is.

    Args:
        name: its name.
        number: the last part of its address.
        lab: the lab's folder, which has the host's home and what it finds in /etc.
        switch: what its link leads to.
        profile: what its link is like.
    """

    def __init__(
        self, name: str, number: int, lab: Path, switch: Switch, profile: LinkProfile
    ) -> None:
        self.name, self.number = name, number
        self.address = f"{NETWORK}.{number}"
        self.home = lab / name
        self.profile = profile
        self.environment: dict[str, str] = {}
        self._lab, self._switch = lab, switch
        self._share = HostShare(lab.name, name)
        self._first: subprocess.Popen[str] | None = None
        self._process = 0
        self._before = Traffic()
        self._started: list[HostProcess] = []

    @property
    def is_up(self) -> bool:
        return self._first is not None

    @property
    def process(self) -> int:
        """The ID of its first process, as this machine sees it; NoLab if the host is down."""
        if self._first is None:
            raise NoLab(f"{self.name} is down")
        return self._process

    @property
    def entering(self) -> str:
        """The command line with which a person gets a shell on it."""
        words = ["env", f"HOME={self.home}", "bash"]
        return shlex.join(["nsenter", "--target", str(self.process), *_NAMESPACES, *words])

    def up(self) -> None:
        """Start it, with a new cable; programs that it should run are the lab's business."""
        self.home.mkdir(exist_ok=True)
        script = _FIRST.format(
            passwd=shlex.quote(str(self.home / "passwd")),
            hosts=shlex.quote(str(self._lab / "hosts")),
            name=self.name,
        )
        (self.home / "passwd").write_text(_passwd(self.home))
        apart = ["unshare", *_NAMESPACES, "--fork", "--kill-child", "sh", "-c", script]
        first = subprocess.Popen(
            self._sharing(apart),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        if opened(first.stdout).readline() != "up\n":
            raise NoLab(f"no {self.name}: {' '.join(opened(first.stderr).read().split())}")
        self._first = first
        self._process = psutil.Process(first.pid).children()[0].pid
        self._switch.plug(self.name, self.number, self._process, self.profile)

    def kill(self) -> None:
        """Pull the plug: all its processes die at once, and what was in memory is lost."""
        first = self._first
        if first is None:
            return
        with suppress(FileNotFoundError):
            self._before += traffic_of(self._process)
        self._first = None
        with suppress(ProcessLookupError):
            os.kill(self._process, signal.SIGKILL)
        first.wait()  # the kernel has ended all the others before
        for pipe in (first.stdin, first.stdout, first.stderr):
            opened(pipe).close()
        with suppress(NoLab):  # the switch may have ended before
            self._switch.unplug(self.name)

    def close(self) -> None:
        """Kill it, and give its share of the machine back."""
        self.kill()
        self._share.close()
        for process in self._started:
            process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()

    def start(
        self,
        *words: object,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
        output: int | IO[str] = subprocess.PIPE,
        errors: int | IO[str] = subprocess.PIPE,
    ) -> HostProcess:
        """Start a program on it, with nothing on its standard input."""
        into = ["nsenter", "--target", str(self.process), *_NAMESPACES]
        # Here a folder is that of the host, where another file system may be mounted.
        there = ["sh", "-c", 'cd "$0" && exec "$@"', str(cwd or self.home), *map(str, words)]
        process = HostProcess(
            self._sharing([*into, *there]),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            text=True,
            env=self._variables(environment or {}),
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def run(
        self,
        *words: object,
        status: int | None = 0,
        seconds: float = 90.0,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> str:
        """Run a program on it, and return what it says; `status` is the one it must end with.

        Raises:
            NoLab: it ended with another status, or not in time.
        """
        errors = subprocess.STDOUT
        process = self.start(*words, cwd=cwd, environment=environment, errors=errors)
        line = shlex.join(map(str, words))[:200]
        try:
            said, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            said, _ = process.communicate()
            raise NoLab(f"{self.name}: {line}: not done in {seconds:.0f} s\n{said}") from None
        if status is not None and process.returncode != status:
            raise NoLab(f"{self.name}: {line}: status {process.returncode}\n{said}")
        return said

    def downpour(self, *words: object, status: int | None = 0, seconds: float = 90.0) -> str:
        """Run a command of ours on it."""
        return self.run(sys.executable, "-m", "downpour", *words, status=status, seconds=seconds)

    def limit(self, *, processors: float | None = None, memory_bytes: int | None = None) -> None:
        """Limit what all its programs use together; None: no limit.

        0.25 processors are a quarter of one. The kernel kills a program that wants more memory.
        """
        self._share.limit_processors(processors)
        self._share.limit_memory(memory_bytes)

    def throttle(self, bytes_per_second: int | None = None) -> None:
        """Limit the rate of its link in each direction; None: the profile's."""
        bits = self.profile.bits_per_second if bytes_per_second is None else bytes_per_second * 8
        self._switch.limit(self.number, self.process, bits)

    def lose(
        self, share: float, *, from_: LabHost | None = None, to: LabHost | None = None
    ) -> None:
        """Lose a share of the packets from one host, or to one; of all in each direction if none.

        Faults last until `heal`, or until the host is killed.
        """
        self._fault(from_, to, drop=share, late_seconds=0.0)

    def cut(self, *, from_: LabHost | None = None, to: LabHost | None = None) -> None:
        """Lose every packet, as `lose` does: in one direction, if one is named."""
        self.lose(1.0, from_=from_, to=to)

    def delay(
        self, seconds: float, *, from_: LabHost | None = None, to: LabHost | None = None
    ) -> None:
        """Let packets take longer: those from one host, or to one, or all in each direction."""
        self._fault(from_, to, drop=0.0, late_seconds=seconds)

    def heal(self) -> None:
        """Forget all that `lose`, `cut` and `delay` have done to its link."""
        self._switch.heal(self.name)

    def traffic(self) -> Traffic:
        """Return what has gone over its link since the lab began."""
        return self._before + traffic_of(self._process) if self.is_up else self._before

    def _fault(
        self, from_: LabHost | None, to: LabHost | None, *, drop: float, late_seconds: float
    ) -> None:
        peers = {"in": from_, "out": to}
        for way, peer in peers.items():
            if peer is not None or (from_ is None and to is None):
                number = peer.number if peer is not None else 0
                self._switch.fault(self.name, way, number, drop, late_seconds)

    def _sharing(self, words: list[str]) -> list[str]:
        """Return a command that runs in the host's share of the machine."""
        entering = [f"echo $$ >{shlex.quote(str(file))}" for file in self._share.entrances]
        return ["sh", "-c", " && ".join([*entering, 'exec "$@"']), "sh", *words]

    def _variables(self, more: Mapping[str, str]) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SSH_")}
        return {**kept, "HOME": str(self.home), **self.environment, **more}


def _passwd(home: Path) -> str:
    """Return this machine's users, of whom the one that runs the lab has another home."""
    lines = []
    for line in Path("/etc/passwd").read_text().splitlines():
        fields = line.split(":")
        if fields[2:3] == [str(os.getuid())]:
            fields[5] = str(home)
        lines.append(":".join(fields) + "\n")
    return "".join(lines)
