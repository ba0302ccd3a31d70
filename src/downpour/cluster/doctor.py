"""`downpour doctor`: checks that the shared directory, as this machine sees it, is usable.

Each check answers one question in one row. If a check fails, the checks that need it show "not
checked". All checks use a hidden folder, which they always remove, and touch nothing else.
"""

import os
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from downpour.base import VERSION
from downpour.base.errors import DownpourError, SharedDirectoryError
from downpour.base.names import CPU
from downpour.cluster import probes
from downpour.cluster.launchers.ssh_script import Look
from downpour.files.store import SharedDirectory
from downpour.files.store.bucket import Bucket
from downpour.files.store.directory import find_mount
from downpour.files.store.publish import TEMPORARY_PREFIX, explain
from downpour.files.store.shared_directory import seen_location
from downpour.network.rpc import PROTOCOL, ManagerClient, frames
from downpour.network.rpc.messages import ManagerInfo
from downpour.record.result_parts import idle_cards

MEMORY_PER_WORKER_BYTES = 400 * 2**20
"""A worker with torch and a small model takes 300 MiB or so."""


@dataclass(frozen=True, slots=True)
class HostReport:
    """A look at a host, and its problems."""

    look: Look
    problems: tuple[probes.Finding, ...]

    @property
    def verdict(self) -> probes.Verdict:
        """The worst of its problems."""
        verdicts = {problem.verdict for problem in self.problems}
        return next(
            (v for v in (probes.Verdict.FAILED, probes.Verdict.WARNING) if v in verdicts),
            probes.Verdict.GOOD,
        )


def judge(looks: Sequence[Look]) -> list[HostReport]:
    """Return a report on each host that we have looked at, in order."""
    classes = Counter(look.numerics for look in looks if look.numerics)
    usual = max(classes, key=lambda numerics: classes[numerics], default="")
    return [HostReport(look, tuple(_problems(look, usual))) for look in looks]


def _problems(look: Look, usual: str) -> Iterator[probes.Finding]:
    if look.obstacle:
        yield probes.bad(look.obstacle, "")
        return
    if abs(look.ahead_seconds) > probes.SKEW_WARN_SECONDS:
        way = "ahead" if look.ahead_seconds > 0 else "behind"
        seen = f"its clock is {abs(look.ahead_seconds):.1f} s {way}"
        yield probes.doubtful(seen, "times of files and logs will not agree")
    if not look.numerics:
        yield probes.doubtful("it has no torch", "install it there")
    elif look.numerics != usual:
        meaning = "its models will have different bytes than those of the other hosts, which have"
        yield probes.doubtful(look.numerics, f"{meaning} {usual}")
    slots = look.host.slots
    if slots > look.cores:
        seen = f"{slots} slots on {look.cores} cores"
        yield probes.doubtful(seen, "its workers will slow each other down")
    if look.cards > slots:
        seen = f"{look.cards} accelerators, but slots={slots}"
        yield probes.doubtful(seen, "the others stay idle; each worker takes one")
    if look.memory_bytes < slots * MEMORY_PER_WORKER_BYTES:
        seen = f"{slots} slots with {look.memory_bytes / 2**30:.1f} GiB of memory free"
        yield probes.doubtful(seen, "a worker needs at least 0.4 GiB")


_SIDE = 64


class DeviceCheck:
    """Computes on every accelerator, and knows what it is waiting for."""

    def __init__(self) -> None:
        self._computing_on = ""

    def look(self) -> probes.Finding:
        """Multiply matrices on every accelerator; names the cards."""
        # Imported here, because torch takes seconds to import, and other checks come first.
        try:
            import torch

            from downpour.learning.accelerators import card_of, devices_here, release
        except (ImportError, OSError) as error:
            return probes.bad(f"torch cannot be imported: {_first_line(error)}", "install it again")

        seen = [CPU]
        for name in devices_here().names[1:]:
            self._computing_on = name
            try:
                ones = torch.ones(_SIDE, _SIDE, device=name)
                total = float((ones @ ones).sum().item())
                release(name)
            except RuntimeError as error:
                wanted = "update its driver, or train with --device cpu"
                return probes.bad(f"{name}: {_first_line(error)}", wanted)
            if total != _SIDE**3:
                return probes.bad(
                    f"{name} computes {total:g} for {_SIDE**3}", "train with --device cpu"
                )
            seen.append(f"{name} ({card_of(name)[0]})")
        return probes.good(", ".join(seen))

    def late(self, seconds: float) -> probes.Finding:
        """Return the finding if `look` takes longer than this."""
        if self._computing_on:
            seen = f"{self._computing_on} has not answered for {seconds:g} s"
            return probes.bad(seen, "check its driver, or train with --device cpu")
        seen = f"torch could not be imported within {seconds:g} s"
        return probes.doubtful(seen, "each worker here takes as long to start")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


Findings = Mapping[str, probes.Finding]
Check = Callable[[], probes.Finding]

_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage")
_NO_FOLDER, _NO_BUCKET = "the folder cannot be used", "the bucket cannot be used"
_FOLDER_LATE = "check the disk or file server that has the folder"
_BUCKET_LATE = "check that the object store can be reached"
_PROBES: Mapping[str, Callable[[Path], probes.Finding]] = {
    "publishing": probes.publishing,
    "fsync": probes.syncing,
    "locks": probes.locking,
    "space": probes.space,
    "clock": probes.clock,
    "speed": probes.speed,
}
_BUCKET_REMEDY = "try again; if it fails again, use another object store"
_BUCKET_PROBES: Mapping[str, Callable[[Bucket], probes.Finding]] = {
    "conditional writes": probes.conditions,
    "bucket's speed": probes.bucket_speed,
}


def diagnose(
    shared: str | os.PathLike[str],
    manager: ManagerClient | None,
    on_begin: Callable[[str], None] = lambda _: None,
    *,
    find: Callable[[], ManagerClient | None] = lambda: None,
    limit_seconds: float = 20.0,
) -> Findings:
    """Check a shared directory, and that it is the manager's; returns findings by check, in order.

    For an object store, named by its URL, this checks both the store and this machine's folder for
    it. `on_begin` hears the name of each check. One that takes over `limit_seconds` fails. Without
    a `manager`, `find` returns the one that leads in a usable directory, or None.
    """
    place = seen_location(shared)
    root = place.root.expanduser().absolute()
    attempts = probes.Attempts(limit_seconds, partial(probes.late, _FOLDER_LATE))
    findings: dict[str, probes.Finding] = {}

    def check(name: str, look: Check, attempts: probes.Attempts = attempts) -> probes.Finding:
        on_begin(name)
        remedy = _BUCKET_REMEDY if name in _BUCKET_PROBES else "use another file system"
        findings[name] = attempts.make(partial(_made, look, remedy))
        return findings[name]

    if place.bucket is not None:
        of_store = probes.Attempts(limit_seconds, partial(probes.late, _BUCKET_LATE))
        there = check("bucket", partial(probes.reachable, place.bucket), of_store)
        works = there.verdict is probes.Verdict.GOOD
        for name, of_bucket in _BUCKET_PROBES.items():
            tried = (
                partial(of_bucket, place.bucket) if works else partial(probes.unknown, _NO_BUCKET)
            )
            check(name, tried, of_store)
    with (
        _made_meanwhile(root if place.bucket is not None else None),
        _probe_folder(root, attempts) as probe,
    ):
        usable = check("folder", partial(_folder, root, probe)).verdict is probes.Verdict.GOOD
        check("file system", partial(_file_system, root))
        for name, look in _PROBES.items():
            check(name, partial(look, probe) if usable else partial(probes.unknown, _NO_FOLDER))
    on_begin("devices")
    devices = DeviceCheck()
    findings["devices"] = probes.Attempts(limit_seconds, devices.late).make(devices.look)
    check("thrift", _thrift)
    on_begin("manager")
    findings["manager"], asked, info = _asked(manager, find if usable else lambda: None)
    if asked is not None:
        check("accelerators", partial(_accelerators, asked))
    check("same folder", partial(_same_folder, place, info))
    return findings


def is_healthy(findings: Findings) -> bool:
    """Whether no check failed; warnings do not count."""
    return all(finding.verdict is not probes.Verdict.FAILED for finding in findings.values())


@contextmanager
def _made_meanwhile(folder: Path | None) -> Iterator[None]:
    """Make this machine's folder for a bucket, as a manager would, and remove it at the end."""
    missing = [] if folder is None else [at for at in (folder, *folder.parents) if not at.exists()]
    with suppress(OSError):  # the check of the folder states the reason
        for at in reversed(missing):
            at.mkdir()
    try:
        yield
    finally:
        for at in missing:
            with suppress(OSError):  # another process may have put something there
                at.rmdir()


@contextmanager
def _probe_folder(root: Path, attempts: probes.Attempts) -> Iterator[Path]:
    """Yield the path of a folder for the probes; remove it at the end, even after Ctrl-C."""
    path = root / f"{TEMPORARY_PREFIX}doctor-{uuid.uuid4().hex[:12]}"
    try:
        yield path
    finally:
        attempts.finish(partial(shutil.rmtree, path, ignore_errors=True))


def _made(look: Check, remedy: str) -> probes.Finding:
    """Run a check; if it raises an error, that is its finding."""
    try:
        return look()
    except (OSError, DownpourError) as error:
        reason = explain(error) if isinstance(error, OSError) else str(error)
        return probes.bad(reason, _room_or(remedy, reason))


def _room_or(remedy: str, reason: str) -> str:
    return "make room" if "full (" in reason else remedy


def _folder(root: Path, probe: Path) -> probes.Finding:
    if not root.exists():
        return probes.bad(
            f"{root}: no such folder", "mount or create it, or name another with --shared"
        )
    if not root.is_dir():
        return probes.bad(f"{root}: not a folder", "name a folder with --shared")
    try:
        probe.mkdir()
        (probe / "written").write_bytes(b"x")
    except OSError as error:
        reason = explain(error)
        remedy = _room_or(f"let user {os.geteuid()} write there", reason)
        return probes.bad(f"{root}: {reason}", remedy)
    return probes.good(f"{root}, writable")


def _file_system(root: Path) -> probes.Finding:
    if not root.is_dir():
        return probes.unknown(_NO_FOLDER)
    mount = find_mount(root)
    if mount is None:
        return probes.unknown("this system does not say")
    kind = f"{mount.kind} at {mount.point}"
    if mount.doubtful:
        meanings = "; ".join(f"{option}: {means}" for option, means in mount.doubtful.items())
        return probes.doubtful(kind, meanings)
    if not mount.is_network:
        kind = f"{kind}, which only this machine sees"
    if mount.is_in_small_pages and _HUGE_PAGES.is_dir():
        # With huge pages, rounds of 2 and 10 workers take two thirds and three quarters of the
        # time, and rounds of 100 MB take half of it (`benchmarks/coordination.py`).
        command = f"mount -o remount,huge=within_size {mount.point}"
        kind = f"{kind}; for more speed, let root run `{command}`"
    return probes.good(kind)


def _thrift() -> probes.Finding:
    if not frames.is_accelerated():
        return probes.doubtful(frames.NOT_ACCELERATED, frames.ACCELERATE)
    return probes.good("has its C extension")


def _asked(
    named: ManagerClient | None, find: Callable[[], ManagerClient | None]
) -> tuple[probes.Finding, ManagerClient | None, ManagerInfo | None]:
    """Return the finding and, if a manager answers, that manager and what it says of itself."""
    try:
        manager = named or find()
        if manager is None:
            return probes.unknown("none leads here; --manager names another"), None, None
        info = manager.describe()
        return _version(manager, info), manager, info
    except DownpourError as error:
        if named is not None:
            found = probes.bad(str(error), "start it there, or name another with --manager")
        else:  # not a failure: a user may call the doctor between `down` and `up`
            found = probes.doubtful(str(error), "needed only while a cluster runs")
        return found, None, None


def _accelerators(manager: ManagerClient) -> probes.Finding:
    idle = idle_cards(manager.status())
    remedy = "start more workers there; each trains on one"
    return probes.doubtful(idle, remedy) if idle else probes.good("none is idle")


def _version(manager: ManagerClient, info: ManagerInfo) -> probes.Finding:
    seen = f"{manager.address} runs downpour {info.version}"
    if info.protocol != PROTOCOL:
        seen = f"{seen} (protocol {info.protocol}), this machine {VERSION} (protocol {PROTOCOL})"
        return probes.bad(seen, "install the same version on both")
    if info.version != VERSION:
        return probes.doubtful(seen, f"this machine runs {VERSION}; the two are compatible")
    workers = len(manager.status().workers)
    return probes.good(f"{seen} and has {workers or 'no'} worker{'s' * (workers != 1)}")


def _same_folder(place: SharedDirectory, info: ManagerInfo | None) -> probes.Finding:
    if info is None:
        return probes.unknown("only the manager can tell")
    if not place.root.is_dir():
        return probes.unknown(_NO_FOLDER)
    try:
        replace(place, patience_seconds=1.0).read_presence(info.presence_file)
    except SharedDirectoryError:
        seen = "the manager's presence file is missing here, so the manager sees another folder"
        return probes.bad(seen, "mount the manager's folder here, or name it with --shared")
    return probes.good("it is the manager's")
