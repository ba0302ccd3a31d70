"""How many files and connections this process may open at a time."""

from __future__ import annotations

import errno
import resource
from contextlib import suppress

_WANTED = 65536
"""Many systems have a soft limit of only 1,024."""
CONNECTIONS_MAX = 16384
"""More connections would need more threads than a process can run well."""
CONNECTIONS_OF_A_WORKER = 2
"""To its manager: one for heartbeats, and one for reports. The manager opens a third one to it."""
_RESERVE_MAX = 512
_FILES_AT_ONCE_MAX = 64


def allow_many() -> None:
    """Raise this process's limit as far as the system permits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def allowed() -> int:
    """Return the number of descriptors that this process may hold."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _WANTED if soft == resource.RLIM_INFINITY else soft


def connections_allowed() -> int:
    """Return how many connections this process may accept, so that its own files find room.

    It leaves a quarter for files, and the rest of a worker's descriptors for calls back.
    """
    free = allowed() - min(_RESERVE_MAX, allowed() // 4)
    workers = free // (CONNECTIONS_OF_A_WORKER + 1)
    return min(CONNECTIONS_MAX, workers * CONNECTIONS_OF_A_WORKER)


def files_at_once() -> int:
    """Return how many files one thread may map at a time; each holds a descriptor."""
    return min(_FILES_AT_ONCE_MAX, max(1, allowed() // 16))


def lacks_descriptors(error: OSError) -> bool:
    """Whether an operation failed because this process, or its system, has none left."""
    return error.errno in {errno.EMFILE, errno.ENFILE}
