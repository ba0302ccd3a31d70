"""Whose failure an OSError on the shared directory is: the directory's, one file's, or our own.

One rule for whatever is done there: publishing, reading, listing, removing, locking, the record and
the journal. It is *the directory's* (`SharedDirectoryError`), and waited for, unless the error
speaks of something else:

- of one name: it is taken, too long, a folder, no regular file, larger than files may be;
- of this process: it is out of memory or of descriptors.

A name that is not there is `FileMissing` where its folder can be listed, and else the directory's.
To be denied one file (EACCES, EPERM) is the directory's too: who may read is for its owner to mend,
and whatever was refused for it would be lost. Only a file that was read may be called wrong.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from downpour.errors import SharedDirectoryError, StoreError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_OF_ONE_NAME = frozenset(
    {errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EFBIG, errno.ENXIO}
)
_OF_THIS_PROCESS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def is_outage(error: BaseException) -> bool:
    """Whether it is the shared directory that is gone, full or closed, and not one file of it."""
    return isinstance(error, SharedDirectoryError)


def explain(error: OSError, *, reading: bool = False) -> str:
    """Say in a few words why a directory or file cannot be used, or be read."""
    if isinstance(error, FileNotFoundError):
        return "no such folder"
    if isinstance(error, NotADirectoryError | FileExistsError):
        return "not a folder"
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return f"not {'readable' if reading else 'writable'} ({error.strerror})"
    if error.errno in _FULL:
        return f"full ({error.strerror})"
    return error.strerror or type(error).__name__


@contextmanager
def writing(folder: Path, name: str) -> Iterator[None]:
    """Raise an OSError of the block as what it means to whoever changes a file of a folder.

    Raises:
        SharedDirectoryError: it is the directory's.
        StoreError: it is the file's, or this process's.
    """
    try:
        yield
    except FileExistsError as error:
        raise StoreError(f"{name}: published before; names are never reused") from error
    except OSError as error:
        if error.errno in _OF_ONE_NAME | _OF_THIS_PROCESS:
            raise StoreError(f"{name}: cannot be written: {explain(error)}") from error
        raise SharedDirectoryError(folder, explain(error)) from error


@contextmanager
def reading(folder: Path, name: str = "") -> Iterator[None]:
    """Raise an OSError of the block as what it means to whoever reads a file or lists a folder.

    Raises:
        SharedDirectoryError: it is the directory's.
        StoreError: it is the file's, or this process's.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _OF_ONE_NAME | _OF_THIS_PROCESS:
            what = name or folder.name
            raise StoreError(f"{what}: cannot be read: {error.strerror}") from error
        reason = explain(error, reading=True)
        raise SharedDirectoryError(folder, f"{name}: {reason}" if name else reason) from error
