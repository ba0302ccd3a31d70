"""A file server that fails for a while."""

import errno
import os
from collections.abc import Callable
from typing import Any


def away_for(calls: int, call: Callable[..., Any], *, done: bool = False) -> Callable[..., Any]:
    """Return a system call whose first answers are EIO, be it carried out (`done`) or not."""
    left = [calls]

    def answered(*args: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            return call(*args)
        if done:
            call(*args)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    return answered
