"""Waiting for what is about to be there: a manager that starts, the folder or token it makes.

A manager, its workers and its users may be started in any order, by people and by engines that know
nothing of one another. So what is not there yet is waited for, and the log says so once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    stop_after_delay,
    wait_random_exponential,
)

from downpour.errors import (
    DeadlineExceeded,
    Refused,
    SharedDirectoryError,
    SpecError,
    Unreachable,
)

log = logging.getLogger(__name__)

CONNECT_SECONDS = 60.0
"""A manager that takes over has read all journals by then, on any machine tried."""
_DAY_SECONDS = 86400


def checked_seconds(seconds: float) -> float:
    """Return how long to wait for a manager, if it is a time.

    Raises:
        SpecError: it is no number from 0 to a day.
    """
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not number or not 0 <= seconds <= _DAY_SECONDS:
        accepted = f"must be a number of seconds from 0 to {_DAY_SECONDS}"
        raise SpecError("connect_seconds", seconds, accepted)
    return seconds


def awaiting(seconds: float, between: Callable[[], object] = lambda: None) -> Retrying:
    """Make what repeats a call until all that it needs is there; then the last error stands.

    Args:
        seconds: how long to wait at most; 0: one try.
        between: called before each further try; it may look elsewhere, or raise.
    """

    def before_sleep(state: RetryCallState) -> None:
        if state.attempt_number == 1 and state.outcome is not None:
            log.warning("%s; waiting for up to %.0f s", state.outcome.exception(), seconds)
        between()

    return Retrying(
        retry=retry_if_exception(may_come),
        wait=wait_random_exponential(multiplier=0.1, max=1),
        stop=stop_after_delay(seconds),
        before_sleep=before_sleep,
        reraise=True,
    )


def may_come(error: BaseException) -> bool:
    """Whether a call that ended so may succeed later, though the caller changes nothing."""
    if isinstance(error, Refused):
        return error.busy
    if isinstance(error, SharedDirectoryError) or _names_the_token(error):
        return isinstance(error.__context__, FileNotFoundError)
    return isinstance(error, DeadlineExceeded | Unreachable)


def _names_the_token(error: BaseException) -> bool:
    return isinstance(error, SpecError) and error.field == "token_file"
