"""How long the shared directory is tried again before it is believed.

A network file system shows other machines' files late: a name that was asked for too early stays
"missing" until its directory is listed, and sizes lag by seconds. A server that is away for a
moment may cost whatever was being read or written then. So what fails is repeated, soon at first
and then once a second, until patience ends; then the last error stands. Time is counted in what was
slept, so a test that passes its own `sleep` needs no clock.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, wait_exponential

from downpour.errors import SharedDirectoryError, StoreError

T = TypeVar("T")

_FIRST_WAIT_SECONDS = 0.005
_LONGEST_WAIT_SECONDS = 1.0
_PASSING = frozenset({errno.EIO, errno.ESTALE, errno.ETIMEDOUT})


def is_of_the_store(error: BaseException) -> bool:
    """Whether a look that ended so may succeed later; looking again harms nothing."""
    return isinstance(error, StoreError)


def is_of_the_directory(error: BaseException) -> bool:
    """Whether it is the shared directory that is gone or full, and not one file of it."""
    return isinstance(error, SharedDirectoryError)


def is_passing(error: BaseException) -> bool:
    """Whether a change that failed may succeed later: the server was away, or has forgotten us."""
    return isinstance(error, OSError) and error.errno in _PASSING


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Repeats what the shared directory refused, for up to `seconds` of sleeping."""

    seconds: float = 30.0
    sleep: Callable[[float], object] = time.sleep

    def repeat(
        self, act: Callable[[], T], *, when: Callable[[BaseException], bool] = is_of_the_store
    ) -> T:
        """Return what `act` returns as soon as it raises nothing that `when` calls worth a wait.

        In the end, its last error is raised. `act` may have taken effect although it failed.
        """
        retrying = Retrying(
            retry=retry_if_exception(when),
            wait=wait_exponential(multiplier=_FIRST_WAIT_SECONDS, max=_LONGEST_WAIT_SECONDS),
            stop=self._is_over,
            sleep=self._pause,
            reraise=True,
        )
        return retrying(act)

    def _pause(self, seconds: float) -> None:
        self.sleep(seconds)

    def _is_over(self, state: RetryCallState) -> bool:
        return state.idle_for >= self.seconds
