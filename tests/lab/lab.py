"""The lab in a box: hosts, links between them, and what they share, from `with` to its end.

Everything lies in one folder, and in namespaces and groups that end with the lab. A lab that was
killed ends all the same, because the kernel ends its hosts; the next one removes its folder.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Literal, Self

import psutil
from filelock import FileLock, Timeout

from tests.lab.failing import NoLab, run, why_missing
from tests.lab.hosts import LabHost
from tests.lab.links import LinkProfile, Switch, Traffic, profile_named
from tests.lab.shares import remove_shares, why_no_shares
from tests.lab.ssh import hosts_file, start_sshd, why_no_ssh, write_keys
from tests.lab.store import (
    BUCKET,
    mount_folder,
    serve_folder,
    serve_objects,
    why_no_folder,
    why_no_objects,
)

Shared = Literal["folder", "objects", "nothing"]
"""What hosts have in common over the links, beside the local files that all of them see."""

HOSTS_MAX = 200
_PREFIX = "downpour-lab-"
_STORE_NUMBER = 250
_TRIAL = "tc qdisc add dev lo root tbf rate 1mbit burst 5000 limit 5000"
_PROGRAMS = {
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "mount": "mount",
    "ip": "iproute2",
    "tc": "iproute2",
    "ss": "iproute2",
}


def why_not(shared: Shared = "nothing") -> str:
    """Say in one line why there can be no lab here; empty where there can be one."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "a lab needs root on Linux"
    for program, package in _PROGRAMS.items():
        if reason := why_missing(program, package):
            return reason
    if not Path("/dev/net/tun").exists():
        return "a lab needs /dev/net/tun"
    try:
        run("unshare", "--net", "--mount", "--pid", "--fork", "sh", "-c", _TRIAL)
    except NoLab as error:
        return f"a lab cannot be: {error}"
    reasons = {"folder": why_no_folder, "objects": why_no_objects}
    reason = why_no_shares() or why_no_ssh()
    return reason or (reasons[shared]() if shared in reasons else "")


class Lab:
    """Hosts `pc1`, `pc2` and so on, and a host `store` that serves what they share.

    Args:
        profile: what the links are like; see `links.PROFILES`.
        hosts: how many hosts there are, beside the store.
        shared: a folder over the links at `folder`, a bucket at `url`, or nothing.

    Raises:
        NoLab: there can be no such lab here, in one line.
    """

    def __init__(self, profile: str, *, hosts: int, shared: Shared = "folder") -> None:
        self.profile: LinkProfile = profile_named(profile)
        if not 1 <= hosts <= HOSTS_MAX:
            raise NoLab(f"hosts = {hosts} must be from 1 to {HOSTS_MAX}")
        if reason := why_not(shared):
            raise NoLab(reason)
        self.shared = shared
        self.removed: list[Path] = []  # folders of killed labs, which this one has removed
        self._names = [f"pc{number}" for number in range(1, hosts + 1)]
        self._hosts: dict[str, LabHost] = {}

    def __enter__(self) -> Self:
        with ExitStack() as ending:
            with _alone():
                self.removed = remove_leftovers()
                self._path = Path(tempfile.mkdtemp(prefix=_PREFIX))
                ending.callback(shutil.rmtree, self._path, ignore_errors=True)
                ending.enter_context(FileLock(self._path / "lock", thread_local=False))
            ending.callback(remove_shares, self._path.name)
            self._up(ending)
            self._ending = ending.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.close()

    def __getitem__(self, name: str) -> LabHost:
        if name not in self._hosts:
            raise NoLab(f"there is no host {name!r}; there are {', '.join(self._hosts)}")
        return self._hosts[name]

    def __iter__(self) -> Iterator[LabHost]:
        """All hosts but the store."""
        return (self._hosts[name] for name in self._names)

    @property
    def path(self) -> Path:
        """The lab's own folder, which all hosts see as this machine does."""
        return self._path

    @property
    def folder(self) -> Path:
        """Where every host, but not this machine, has the shared folder."""
        if self.shared != "folder":
            raise NoLab("this lab has no shared folder: ask for shared='folder'")
        return self._path / "shared"

    @property
    def export(self) -> Path:
        """Where the store, and so this machine, has the files of the shared folder."""
        return self._path / "export"

    @property
    def url(self) -> str:
        """The bucket; hosts have the variables by which it is found in their environment."""
        if self.shared != "objects":
            raise NoLab("this lab has no bucket: ask for shared='objects'")
        return f"s3://{BUCKET}/lab"

    @property
    def hosts_file(self) -> Path:
        """The file that `downpour run --on ssh --hosts` reads."""
        return self._path / "hosts.txt"

    def start(self, name: str) -> None:
        """Start a host that was killed: with a new link, its daemon and the shared folder."""
        host = self._hosts[name]
        host.up()
        start_sshd(self._path, host)
        if self.shared == "folder":
            mount_folder(self._path, host, self.folder)

    def traffic(self) -> Traffic:
        """Return what all hosts, the store too, have sent and received together."""
        return sum((host.traffic() for host in self._hosts.values()), Traffic())

    def wire_seconds(self) -> float:
        """Return the processor time that the cables have taken: what the lab itself costs."""
        used = psutil.Process(self._switch.process).cpu_times()
        return float(used.user + used.system)

    def _up(self, ending: ExitStack) -> None:
        self._switch = Switch()
        ending.callback(self._switch.close)
        numbers = dict(zip(self._names, range(1, HOSTS_MAX + 1), strict=False))
        numbers["store"] = _STORE_NUMBER
        for name, number in numbers.items():
            self._hosts[name] = LabHost(name, number, self._path, self._switch, self.profile)
            ending.callback(self._hosts[name].close)
        lines = [f"{host.address} {host.name}\n" for host in self._hosts.values()]
        (self._path / "hosts").write_text("127.0.0.1 localhost\n::1 localhost\n" + "".join(lines))
        write_keys(self._path)
        self._start_store()
        for name in self._names:
            self.start(name)
        hosts_file(self._path, self)

    def _start_store(self) -> None:
        store = self._hosts["store"]
        store.up()
        if self.shared == "folder":
            serve_folder(self._path, store)
        if self.shared == "objects":
            variables = serve_objects(store)
            for host in self:
                host.environment |= variables


def remove_leftovers() -> list[Path]:
    """Remove what killed labs have left; returns their folders."""
    removed = []
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(Timeout), FileLock(path / "lock", timeout=0):
            remove_shares(path.name)
            shutil.rmtree(path, ignore_errors=True)
            removed.append(path)
    return removed


def _alone() -> FileLock:
    """Let one lab at a time begin: it finds those of others, and must not take them for dead."""
    return FileLock(Path(tempfile.gettempdir(), f".{_PREFIX}{os.geteuid()}.lock"))
