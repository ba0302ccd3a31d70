"""How long a reader of the shared directory tries again before it believes what it sees.

A network file system shows other machines' files late: a name that was asked for too early stays
"missing" until its directory is listed, and sizes lag by seconds. So every look that fails is
repeated, soon at first and then once a second, until patience ends; then the last error stands.
Time is counted in what was slept, so a test that passes its own `sleep` needs no clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_exponential

from downpour.errors import StoreError

T = TypeVar("T")

_FIRST_WAIT_SECONDS = 0.005
_LONGEST_WAIT_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Repeats a look at the shared directory for up to `seconds` of sleeping."""

    seconds: float = 30.0
    sleep: Callable[[float], None] = time.sleep

    def repeat(self, look: Callable[[], T]) -> T:
        """Return what `look` returns as soon as it raises no StoreError; in the end, raise it."""
        retrying = Retrying(
            retry=retry_if_exception_type(StoreError),
            wait=wait_exponential(multiplier=_FIRST_WAIT_SECONDS, max=_LONGEST_WAIT_SECONDS),
            stop=self._is_over,
            sleep=self.sleep,
            reraise=True,
        )
        return retrying(look)

    def _is_over(self, state: RetryCallState) -> bool:
        return state.idle_for >= self.seconds
