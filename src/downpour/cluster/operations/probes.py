"""Tries out the file-system features that the protocol needs, in a temporary folder.

Every probe takes this folder and returns one finding. If a probe raises an `OSError`, the operation
is not possible there at all. Nothing here knows a manager.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median

from downpour.base.errors import StoreError
from downpour.cluster.operations.finding import Finding, bad, doubtful, good
from downpour.files.store.publish import publish, sync_directory

SPACE_WARN_BYTES = 2**30
SPACE_FAIL_BYTES = 16 * 2**20
SKEW_WARN_SECONDS = 2.0
PUBLISH_WARN_MS = 100.0
RELEASE_SECONDS = 2.0

_HOLDER_START_SECONDS = 10.0
_REPEATS = 5
_BLOCK_BYTES = 2**20
# This program lives as long as its standard input stays open, so it never outlives the process that
# started it.
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
        return doubtful(
            f"no hard links ({error.strerror})",
            "Downpour then publishes by renaming, which is safe because it never uses a name twice",
        )
    return good("the file system refuses a taken name")


def syncing(folder: Path) -> Finding:
    """Files and names can be made durable."""
    with (folder / "synced").open("wb") as file:
        file.write(b"x")
        file.flush()
        os.fsync(file.fileno())
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
                return doubtful(
                    f"held for more than {RELEASE_SECONDS:.0f} s after the holder died",
                    "after a crash, preparing a dataset waits that long",
                )
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
    with (folder / "now").open("wb") as file:
        file.write(b"x")
        file.flush()
        os.fsync(file.fileno())
        there = os.fstat(file.fileno()).st_mtime
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


def _write(path: Path, block: bytes) -> None:
    with path.open("wb") as file:
        file.write(block)
        file.flush()
        os.fsync(file.fileno())


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
    """Take a lock if it is free.

    Raises:
        OSError: this file system has no locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in {errno.EWOULDBLOCK, errno.EACCES}:
            return False
        raise
    return True
