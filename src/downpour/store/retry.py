"""How often the shared directory is tried again before it is believed.

A network file system shows other machines' files late: a name that was asked for too early stays
"missing" until its directory is listed, and sizes lag by seconds. A server that is away for a
moment may cost whatever was being read or written then, and a disk that is full gets room again. So
what fails is repeated, soon at first and then once a second, until patience ends; then the last
error stands. With the directory itself there may be another patience than with one file of it.
Time is counted in what was slept, so a test that passes its own `sleep` needs no clock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, wait_exponential

from downpour.errors import StoreError
from downpour.store.os_errors import is_outage

log = logging.getLogger(__name__)

T = TypeVar("T")

_FIRST_WAIT_SECONDS = 0.005
_LONGEST_WAIT_SECONDS = 1.0
_TOLD_AFTER = 10
"""Looks in vain before a log tells of it: five seconds."""


def is_transient(error: BaseException) -> bool:
    """Whether a look that ended so may succeed later; looking again harms nothing."""
    return isinstance(error, StoreError)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Repeats what the shared directory refused.

    `seconds` are how long a file is looked for that is missing, short or altered; `away_seconds`
    how long the directory may be gone, full or closed, and absent the same. Both count sleeping.
    """

    seconds: float = 30.0
    away_seconds: float | None = None
    sleep: Callable[[float], object] = time.sleep

    def call(
        self, act: Callable[[], T], *, when: Callable[[BaseException], bool] = is_transient
    ) -> T:
        """Return what `act` returns as soon as it raises nothing that `when` calls worth a wait.

        In the end, its last error is raised. `act` may have taken effect although it failed.
        """
        retrying = Retrying(
            retry=retry_if_exception(when),
            wait=wait_exponential(multiplier=_FIRST_WAIT_SECONDS, max=_LONGEST_WAIT_SECONDS),
            stop=self._is_over,
            before_sleep=_tell,
            sleep=self._pause,
            reraise=True,
        )
        return retrying(act)

    def call_through_outage(self, act: Callable[[], T]) -> T:
        """Do what `call` does, as long as it is the directory that refuses."""
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


def _tell(state: RetryCallState) -> None:
    """Say once what is waited for."""
    error = state.outcome.exception() if state.outcome is not None else None
    if state.attempt_number == _TOLD_AFTER and error is not None and is_outage(error):
        log.warning("waiting for the shared directory: %s", error)
