"""Publishes a file in a shared directory: whole and durable, or not at all.

We write and sync the file under a unique hidden name in the same directory. Then we *link* the real
name to it, remove the hidden name, and sync the directory. We don't rename the file, because a
rename silently replaces an existing file, while `link` fails, atomically, even on NFS. (Linux's
`renameat2(RENAME_NOREPLACE)` fails, too, but NFS does not support it.) If the file system has no
hard links, we look up the name and then rename; there is no race, because names carry tokens.

We hash and write chunks in blocks that stay in the processor's cache, and never join them. We
reserve no space beforehand: if a file system cannot reserve (NFS before 4.2), the C library would
fill the file by hand.
"""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import xxhash

from downpour.base.errors import StoreError
from downpour.base.values import PublishedFile
from downpour.files.store.base import Buffer, check_bare_name
from downpour.files.store.os_errors import writing
from downpour.files.store.retry import RetryPolicy

T = TypeVar("T")

TEMPORARY_PREFIX = ".tmp-"

# One write of 100 MB can take ten times as long as a hundred of 1 MiB. Blocks that begin at
# multiples of their size get large pages, which readers map faster.
_BLOCK_BYTES = 2**20
_PIECES_MAX = 1024  # of a gathered write (IOV_MAX)
# link(2) returns EPERM on a file system without hard links.
_NO_HARD_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
_NO_DIRECTORY_SYNC = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS})
_NO_RETRY = RetryPolicy(seconds=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """A file that is whole and durable, but has only a hidden name."""

    path: Path
    size_bytes: int
    checksum: str


def publish(
    directory: Path,
    name: str,
    chunks: Sequence[Buffer],
    *,
    retry_policy: RetryPolicy = _NO_RETRY,
    mode: int = 0o666,
) -> PublishedFile:
    """Write `chunks` to a new file `name` in `directory`; it is durable on return.

    If a step fails because the directory is gone, full or closed, we retry it as `retry_policy`
    says. `mode` gives the file's permissions, which the process's umask may reduce.

    Raises:
        StoreError: the name is taken or not bare, or no such file can be written.
        SharedDirectoryError: the directory cannot be written, even after retries.
    """
    target = directory / check_bare_name(name)

    def with_retries(step: Callable[[], T]) -> T:
        def translated() -> T:
            with writing(directory, name):
                return step()

        return retry_policy.call_through_outage(translated)

    # We retry each step separately, so that after an outage during the link, we don't write a large
    # file a second time.
    written = with_retries(partial(_write_new, directory, chunks, mode))
    try:
        with_retries(partial(_give_name, written.path, target))
    finally:
        # A publisher that dies before this line leaves the hidden name to `remove_leftovers`.
        with contextlib.suppress(OSError):
            written.path.unlink()
    with_retries(partial(sync_directory, directory))
    return PublishedFile(name=name, size_bytes=written.size_bytes, checksum=written.checksum)


def sync_directory(directory: Path) -> bool:
    """Make the names in a directory durable; return false if the file system cannot do that."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_SYNC:
            raise
        return False
    finally:
        os.close(descriptor)
    return True


def _write_new(directory: Path, chunks: Sequence[Buffer], mode: int) -> _Written:
    """Write and sync a file under a hidden name; leave no file if that fails."""
    path = directory / f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
    digest = xxhash.xxh3_128()
    size_bytes = 0
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            for pieces in _blocks(chunks):
                for piece in pieces:
                    digest.update(piece)
                    size_bytes += len(piece)
                _write_all(descriptor, pieces)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise
    return _Written(path=path, size_bytes=size_bytes, checksum=digest.hexdigest())


def _blocks(chunks: Sequence[Buffer]) -> Iterator[list[memoryview]]:
    """Cut and gather chunks into blocks of the file, without joining them."""
    pieces: list[memoryview] = []
    room_bytes = _BLOCK_BYTES
    for chunk in chunks:
        rest = memoryview(chunk)
        rest = rest.cast("B") if rest.nbytes else memoryview(b"")  # an empty view has no cast
        while rest:
            pieces.append(rest[:room_bytes])
            room_bytes -= len(pieces[-1])
            rest = rest[len(pieces[-1]) :]
            if room_bytes == 0 or len(pieces) == _PIECES_MAX:
                yield pieces
                pieces = []
                room_bytes = room_bytes or _BLOCK_BYTES
    if pieces:
        yield pieces


def _write_all(descriptor: int, pieces: list[memoryview]) -> None:
    while pieces:
        written = os.writev(descriptor, pieces)
        while pieces and written >= len(pieces[0]):
            written -= len(pieces.pop(0))
        if pieces:
            pieces[0] = pieces[0][written:]


def _give_name(temporary: Path, target: Path) -> None:
    try:
        os.link(temporary, target)
    except FileExistsError:
        # A link may have succeeded although its answer was lost. If this process or the NFS client
        # then repeats it, the name exists already.
        if not temporary.samefile(target):
            raise
    except FileNotFoundError:
        # The folder exists, but without the file: another folder has replaced it meanwhile.
        if temporary.parent.is_dir():
            raise StoreError(f"{target.name}: its temporary file has vanished") from None
        raise
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
        temporary.rename(target)
