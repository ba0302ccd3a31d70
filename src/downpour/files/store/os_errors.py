"""Decides whether an OSError is the fault of the shared directory, of a file, or of this process.

The same rule holds for publishing, reading, listing, removing, locking, the record and the journal.
An error is *the directory's* (`SharedDirectoryError`), and we retry, unless it is about

- one name: it is taken, too long, a folder, not a regular file, larger than files may be;
- this process: it is out of memory.

If descriptors run out (EMFILE, ENFILE), other threads and processes soon close some. So we wait as
for a directory that is away.

A name that does not exist is `FileMissing` if we can list its folder; otherwise the error is the
directory's. A denied file (EACCES, EPERM) is the directory's error, too, because its owner can fix
it; if we refused an update for it, the update would be lost. We may call a file corrupt only after
reading it.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from downpour.base.errors import SharedDirectoryError, StoreError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_OF_ONE_NAME = frozenset(
    {errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EFBIG, errno.ENXIO}
)
_OF_THIS_PROCESS = frozenset({errno.ENOMEM})


def is_outage(error: BaseException) -> bool:
    """Whether the whole shared directory is gone, full or closed, and not just one file."""
    return isinstance(error, SharedDirectoryError)


def explain(error: OSError, *, reading: bool = False) -> str:
    """Say in a few words why we cannot use, or read, a directory or file."""
    if isinstance(error, FileNotFoundError):
        return "no such folder"
    # `mkdir(exist_ok=True)` raises FileExistsError only if something else has the name.
    if isinstance(error, NotADirectoryError | FileExistsError):
        return "not a folder"
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return f"not {'readable' if reading else 'writable'} ({error.strerror})"
    if error.errno in _FULL:
        return f"full ({error.strerror})"
    return error.strerror or type(error).__name__


@contextmanager
def writing(folder: Path, name: str) -> Iterator[None]:
    """Translate an OSError of a block that changes a file in a folder.

    Raises:
        SharedDirectoryError: the error is the directory's.
        StoreError: the error is the file's, or this process's.
    """
    try:
        yield
    except FileExistsError as error:
        raise StoreError(f"{name}: already published; Downpour never reuses names") from error
    except OSError as error:
        if error.errno in _OF_ONE_NAME | _OF_THIS_PROCESS:
            raise StoreError(f"{name}: cannot be written: {explain(error)}") from error
        raise SharedDirectoryError(folder, explain(error)) from error


@contextmanager
def reading(folder: Path, name: str = "") -> Iterator[None]:
    """Translate an OSError of a block that reads a file or lists a folder.

    Raises:
        SharedDirectoryError: the error is the directory's.
        StoreError: the error is the file's, or this process's.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _OF_ONE_NAME | _OF_THIS_PROCESS:
            what = name or folder.name
            raise StoreError(f"{what}: cannot be read: {error.strerror}") from error
        reason = explain(error, reading=True)
        raise SharedDirectoryError(folder, f"{name}: {reason}" if name else reason) from error
