"""Whose failure an OSError on the shared directory is: the directory's, a file's, or our own.

The same rule holds for publishing, reading, listing, removing, locking, the record and the journal.
An error is *the directory's* (`SharedDirectoryError`), and is retried, unless it is about

- one name: it is taken, too long, a folder, not a regular file, larger than files may be;
- this process: it is out of memory or of descriptors.

A name that does not exist is `FileMissing` if its folder can be listed, else the error is the
directory's. A denied file (EACCES, EPERM) is the directory's, too, because its owner can fix it,
while an update that was refused for it would be lost. Only a file that was read may be called
corrupt.
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
_OF_THIS_PROCESS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def is_outage(error: BaseException) -> bool:
    """Whether the shared directory is gone, full or closed, and not just one file of it."""
    return isinstance(error, SharedDirectoryError)


def explain(error: OSError, *, reading: bool = False) -> str:
    """Return in a few words why a directory or file cannot be used, or read."""
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
    """Translate an OSError of the block, which changes a file of a folder.

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
    """Translate an OSError of the block, which reads a file or lists a folder.

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
