"""Reads a file that a user names; the one place that decides which files are acceptable.

A FIFO without a writer would wait forever, a device may never end, and a mistyped name may be a
disk image. So we read only regular files, up to a limit.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

TEXT_BYTES_MAX = 64 * 2**20
"""The limit for a file that people write, such as a spec or a list of hosts."""


def open_user_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file, or a link to one, for reading.

    Raises:
        OSError: it cannot be opened; its `strerror` says why, in words for the user.
    """
    # Without O_NONBLOCK, opening a FIFO would wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    raise OSError(errno.EINVAL, "Not a regular file", os.fspath(path))


def read_user_file(path: str | os.PathLike[str], bytes_max: int = TEXT_BYTES_MAX) -> bytes:
    """Return the content of a regular file.

    Raises:
        OSError: it cannot be read or is too large; its `strerror` says why, in words for the user.
    """
    with open_user_file(path) as file:
        content = file.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise OSError(errno.EFBIG, f"Larger than {bytes_max >> 20} MiB", os.fspath(path))
    return content


def check_user_file(path: Path) -> None:
    """Check that we can read a file, before a library opens it.

    Raises:
        OSError: we cannot; see `open_user_file`.
    """
    open_user_file(path).close()
