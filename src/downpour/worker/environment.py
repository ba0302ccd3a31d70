"""What a process that trains must be told before it trains: how threads wait, how memory is kept.

Both cost more than half of the speed where they are left as they come. OpenMP's threads spin while
they wait, and so take the cores from other workers. glibc hands the large blocks of every batch
back to the kernel and faults them in again at the next one.
"""

from __future__ import annotations

import ctypes
import os
import sys

_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_NEVER = 2**31 - 1


def thread_environment(threads: int) -> dict[str, str]:
    """Return the variables that say how threads behave; read when torch is loaded."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",
    }


def wait_passively() -> None:
    """Set how threads wait, in a process that has not loaded torch yet."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def keep_memory() -> None:
    """Let freed memory stay with this process, as far as its C library can (glibc)."""
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "mallopt"):
        library.mallopt(_M_MMAP_MAX, 0)
        library.mallopt(_M_TRIM_THRESHOLD, _NEVER)
