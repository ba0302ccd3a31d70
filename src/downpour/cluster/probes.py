"""Tries out what the protocol needs of a file system or an object store.

Every probe takes a place and returns one finding. If a probe raises an `OSError`, the operation is
not possible there at all. Nothing here knows a manager.
"""

import fcntl
import os
import select
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from statistics import median
from threading import Thread

from downpour.base.errors import SharedDirectoryError, StoreError
from downpour.files.store.bucket import Bucket
from downpour.files.store.publish import TEMPORARY_PREFIX, publish, sync_directory


class Verdict(StrEnum):
    """The result of a check; only `FAILED` means that the user must correct something."""

    GOOD = "ok"
    WARNING = "warning"
    FAILED = "failed"
    UNKNOWN = "not checked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One check's outcome.

    `seen` is the observation. `change` says what to change after a failure, or explains a warning.
    `figures` are measurements, with units in their names.
    """

    verdict: Verdict
    seen: str
    change: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)


def good(seen: str, **figures: float) -> Finding:
    """Return the finding of a check that has passed."""
    return Finding(verdict=Verdict.GOOD, seen=seen, figures=figures)


def doubtful(seen: str, change: str, **figures: float) -> Finding:
    """Return the finding of something that works, but less well than it could."""
    return Finding(verdict=Verdict.WARNING, seen=seen, change=change, figures=figures)


def bad(seen: str, change: str) -> Finding:
    """Return the finding of something that does not work until the user makes a change."""
    return Finding(verdict=Verdict.FAILED, seen=seen, change=change)


def unknown(seen: str) -> Finding:
    """Return the finding of a check that did not, or could not, run, and why."""
    return Finding(verdict=Verdict.UNKNOWN, seen=seen)


SPACE_WARN_BYTES = 2**30
SPACE_FAIL_BYTES = 16 * 2**20
SKEW_WARN_SECONDS = 2.0
PUBLISH_WARN_MS = 100.0
RELEASE_SECONDS = 2.0

_HOLDER_START_SECONDS = 10.0
_REPEATS = 5
_BLOCK_BYTES = 2**20
# This program ends with its standard input, so it never outlives the process that started it.
_HOLDER = """
import fcntl, sys
with open(sys.argv[1], "wb") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    print("held", flush=True)
    sys.stdin.read()
"""


def publishing(folder: Path) -> Finding:
    """The file system refuses a second file, or a second folder, under a name that is taken."""
    publish(folder, "first", [b"x"])
    with suppress(StoreError):
        publish(folder, "first", [b"y"])
        return bad("the file system gave one name to two files", "use another file system")
    for name in ("made", "taken"):
        (folder / name).mkdir()
        (folder / name / "file").write_bytes(name.encode())
    with suppress(OSError):
        (folder / "made").rename(folder / "taken")
        return bad("the file system renamed a folder over another one", "use another file system")
    (folder / "made").rename(folder / "new")
    if (folder / "made").exists() or (folder / "new" / "file").read_bytes() != b"made":
        return bad("a renamed folder lost files", "use another file system")
    try:
        os.link(folder / "first", folder / "second")
    except OSError as error:
        means = "publishes by renaming, which is safe because it never uses a name twice"
        return doubtful(f"no hard links ({error.strerror})", f"Downpour then {means}")
    return good("the file system refuses a taken name")


def syncing(folder: Path) -> Finding:
    """Files and names can be made durable."""
    _write(folder / "synced", b"x")
    if not sync_directory(folder):
        return doubtful("files, but not names", "a power cut may lose the last published files")
    return good("files and names")


def locking(folder: Path) -> Finding:
    """A lock keeps another process out, and is free again when its holder dies."""
    path = folder / "lock"
    with _holder(path) as holder, path.open("ab") as file:
        if not _says_held(holder):
            return bad("cannot be taken", "mount it with working locks (NFS: version 4, or lockd)")
        if _taken(file.fileno()):
            return bad("two processes held the same lock", "mount it so that locks work")
        holder.kill()
        holder.wait()
        began = time.monotonic()
        while not _taken(file.fileno()):
            if time.monotonic() - began > RELEASE_SECONDS:
                seen = f"held for more than {RELEASE_SECONDS:.0f} s after the holder died"
                return doubtful(seen, "after a crash, preparing a dataset waits that long")
            time.sleep(0.01)
    return good("locks exclude others, and end when the holder dies")


def space(folder: Path) -> Finding:
    """There is room for files, in bytes and in names."""
    free_bytes = shutil.disk_usage(folder).free
    seen = f"{free_bytes / 2**30:.1f} GiB free"
    system = os.statvfs(folder)
    if system.f_files and not system.f_favail:
        return bad(f"{seen}, but no room for more files", "remove files")
    if free_bytes < SPACE_FAIL_BYTES:
        return bad(f"{free_bytes / 2**20:.0f} MiB free", "make room")
    if free_bytes < SPACE_WARN_BYTES:
        return doubtful(seen, "large models may not fit", free_bytes=free_bytes)
    return good(seen, free_bytes=free_bytes)


def clock(folder: Path) -> Finding:
    """The file server's clock is near this machine's."""
    before = time.time()
    there = _write(folder / "now", b"x")
    after = time.time()
    skew = there - min(max(there, before), after)
    seen = f"the file server is {abs(skew):.1f} s {'ahead' if skew > 0 else 'behind'}"
    if abs(skew) > SKEW_WARN_SECONDS:
        return doubtful(seen, "times of files and logs will not agree", skew_seconds=skew)
    return good("agrees with this machine", skew_seconds=skew)


def speed(folder: Path) -> Finding:
    """Publishing, looking and writing take a reasonable time."""
    block = os.urandom(_BLOCK_BYTES)
    publish_ms = _median_ms(lambda turn: publish(folder, f"small-{turn}", [b"x"]))
    stat_ms = _median_ms(lambda _: (folder / "small-0").stat())
    write_ms = _median_ms(lambda turn: _write(folder / f"block-{turn}", block))
    rate = _BLOCK_BYTES / 1e6 / (write_ms / 1e3)
    seen = f"publish {publish_ms:.1f} ms, stat {stat_ms:.2f} ms, write {rate:.0f} MB/s"
    figures = {"publish_ms": publish_ms, "stat_ms": stat_ms, "write_mb_per_second": rate}
    if publish_ms > PUBLISH_WARN_MS:
        return doubtful(seen, "every update and model waits that long", **figures)
    return good(seen, **figures)


def _median_ms(act: Callable[[int], object]) -> float:
    taken = []
    for turn in range(_REPEATS):
        began = time.perf_counter()
        act(turn)
        taken.append(1e3 * (time.perf_counter() - began))
    return median(taken)


def _write(path: Path, block: bytes) -> float:
    """Write a durable file; returns when that was, by the file system's clock."""
    with path.open("wb") as file:
        file.write(block)
        file.flush()
        os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_mtime


def _holder(path: Path) -> subprocess.Popen[bytes]:
    # Use a separate session, because Ctrl-C must reach only the process that cleans up.
    command = [sys.executable, "-I", "-S", "-c", _HOLDER, str(path)]
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    return subprocess.Popen(  # noqa: S603 - this interpreter, with a program of our own
        command, stdin=pipe, stdout=pipe, stderr=nothing, start_new_session=True
    )


def _says_held(holder: subprocess.Popen[bytes]) -> bool:
    if holder.stdout is None:
        return False
    ready, _, _ = select.select([holder.stdout], [], [], _HOLDER_START_SECONDS)
    return bool(ready) and holder.stdout.readline() == b"held\n"


def _taken(descriptor: int) -> bool:
    """Take a lock if it is free."""
    with suppress(BlockingIOError, PermissionError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


_GRACE_SECONDS = 3.0


def late(change: str, seconds: float) -> Finding:
    """Return the finding of a look that takes longer than this, and what to change."""
    return bad(f"no answer for {seconds:g} s", change)


class Attempts:
    """Runs one check after the other; after a check that hangs, it begins no other.

    A thread that waits for an absent file server waits in the kernel, and not even Ctrl-C
    interrupts it. So another thread runs the check; one that hangs ends with the process.

    `late` returns the finding of a check that takes longer; it names only what the check looks at.
    """

    def __init__(self, limit_seconds: float, late: Callable[[float], Finding]) -> None:
        self._limit_seconds = limit_seconds
        self._late = late
        self._thread: Thread | None = None

    def make(self, check: Callable[[], Finding]) -> Finding:
        """Return what a check finds, or that it does not end."""
        if self._is_busy(0.0):
            return unknown("an earlier check has not ended")
        outcome = Future[Finding]()
        thread = self._begin(partial(_settle, outcome, check))
        try:
            finding = outcome.result(self._limit_seconds)
        except TimeoutError:
            return self._late(self._limit_seconds)
        thread.join()
        return finding

    def finish(self, clean: Callable[[], object]) -> None:
        """Clean up once the last check has ended; not if it hangs, because cleaning would, too."""
        if not self._is_busy(_GRACE_SECONDS):
            self._begin(clean)
            self._is_busy(self._limit_seconds)

    def _begin(self, work: Callable[[], object]) -> Thread:
        self._thread = Thread(target=work, name="attempt", daemon=True)
        self._thread.start()
        return self._thread

    def _is_busy(self, wait_seconds: float) -> bool:
        if self._thread is not None:
            self._thread.join(wait_seconds)
        return self._thread is not None and self._thread.is_alive()


def _settle(outcome: Future[Finding], check: Callable[[], Finding]) -> None:
    try:
        outcome.set_result(check())
    except BaseException as error:  # noqa: BLE001 - raised where the outcome is read
        outcome.set_exception(error)


BUCKET_PUBLISH_WARN_MS = 500.0


def reachable(bucket: Bucket) -> Finding:
    """The bucket exists, and the environment's credentials can list its objects."""
    try:
        bucket.names("presence")
    except SharedDirectoryError as error:
        return bad(str(error), "name another with --shared, or set the provider's variables")
    return good(bucket.url)


def conditions(bucket: Bucket) -> Finding:
    """The store refuses a second object under a key that is taken."""
    try:
        bucket.check_conditions()
    except SharedDirectoryError as error:
        return bad(error.reason, "use another object store, or a shared folder")
    return good("a second object of one key is refused")


def bucket_speed(bucket: Bucket) -> Finding:
    """Publishing and reading take a reasonable time."""
    folder, block = f"{TEMPORARY_PREFIX}doctor-{uuid.uuid4().hex[:12]}", os.urandom(_BLOCK_BYTES)
    small = [f"{folder}/small-{turn}" for turn in range(_REPEATS)]
    large = [f"{folder}/block-{turn}" for turn in range(_REPEATS)]
    try:
        publish_ms = _median_ms(lambda turn: bucket.put_new(small[turn], b"x"))
        write_ms = _median_ms(lambda turn: bucket.put_new(large[turn], block))
        read_ms = _median_ms(lambda turn: bucket.get(large[turn]))
    finally:
        with suppress(StoreError):
            for key in (*small, *large):
                bucket.remove(key)
    write, read = (_BLOCK_BYTES / 1e6 / (took / 1e3) for took in (write_ms, read_ms))
    seen = f"publish {publish_ms:.1f} ms, write {write:.0f} MB/s, read {read:.0f} MB/s"
    figures = {"publish_ms": publish_ms, "write_mb_per_second": write, "read_mb_per_second": read}
    if publish_ms > BUCKET_PUBLISH_WARN_MS:
        return doubtful(seen, "every update and model waits that long", **figures)
    return good(seen, **figures)
