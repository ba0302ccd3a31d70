"""Retries operations on the shared directory before we believe that they failed.

A network file system shows other machines' files late. A name that we looked up too early stays
missing until we list its directory, and sizes lag by seconds. If a server is away for a moment,
reads and writes fail, and a full disk may get room again. So we retry a failed operation, soon at
first and then once a second, until the time of the policy is over. Then we raise the last error. A
policy may give the directory itself more time than one file.

The time is the sum of the sleeps, so a test that passes its own `sleep` needs no clock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, wait_exponential

from downpour.base.errors import StoreError
from downpour.files.store.os_errors import is_outage

log = logging.getLogger(__name__)

T = TypeVar("T")

_FIRST_WAIT_SECONDS = 0.005
_LONGEST_WAIT_SECONDS = 1.0
_LOGGED_AFTER = 10
"""Failed tries before we log a line: after 2.3 s in total, because short waits are normal."""


def is_transient(error: BaseException) -> bool:
    """Whether an operation that failed with this error may succeed later."""
    return isinstance(error, StoreError)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Retries operations on the shared directory.

    We retry a file that is missing, short or altered for `seconds`. We retry a directory that is
    gone, full or closed for `away_seconds`, which by default is the same. Both count only the time
    slept.
    """

    seconds: float = 30.0
    away_seconds: float | None = None
    sleep: Callable[[float], object] = time.sleep

    def call(
        self, act: Callable[[], T], *, when: Callable[[BaseException], bool] = is_transient
    ) -> T:
        """Return the result of `act`; retry it while it raises errors for which `when` is true.

        When the time is over, we raise the last error. `act` may have taken effect although it
        failed.
        """
        retrying = Retrying(
            retry=retry_if_exception(when),
            wait=wait_exponential(multiplier=_FIRST_WAIT_SECONDS, max=_LONGEST_WAIT_SECONDS),
            stop=self._is_over,
            before_sleep=_log_wait,
            sleep=self._pause,
            reraise=True,
        )
        return retrying(act)

    def call_through_outage(self, act: Callable[[], T]) -> T:
        """Call `act`, retrying only while the directory itself is away; see `call`."""
        return self.call(act, when=is_outage)

    def _pause(self, seconds: float) -> None:
        self.sleep(seconds)

    def _is_over(self, state: RetryCallState) -> bool:
        error = state.outcome.exception() if state.outcome is not None else None
        is_away = error is not None and is_outage(error)
        seconds = self.seconds
        if is_away and self.away_seconds is not None:
            seconds = self.away_seconds
        return state.idle_for >= seconds


def _log_wait(state: RetryCallState) -> None:
    """Log once why we wait."""
    error = state.outcome.exception() if state.outcome is not None else None
    if state.attempt_number == _LOGGED_AFTER and error is not None and is_outage(error):
        log.warning("waiting for the shared directory: %s", error)
