"""Waiting for a manager that is starting, and for the folder or token that it makes.

People and tools may start a manager, its workers and its clients in any order. So we wait for
missing managers and files, and say so once in the log.
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

from downpour.base.errors import (
    DeadlineExceeded,
    Refused,
    SharedDirectoryError,
    SpecError,
    Unreachable,
)

log = logging.getLogger(__name__)

CONNECT_SECONDS = 60.0
"""On all machines that we tried, a new manager has read all journals by then."""
_DAY_SECONDS = 86400


def checked_seconds(field: str, seconds: float) -> float:
    """Return a duration if it is valid."""
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not number or not 0 <= seconds <= _DAY_SECONDS:
        accepted = f"must be a number of seconds from 0 to {_DAY_SECONDS}"
        raise SpecError(field, seconds, accepted)
    return seconds


def manager_may_come(error: BaseException) -> bool:
    """Whether a call failed because no manager serves yet, or none any more."""
    busy = isinstance(error, Refused) and error.busy
    return busy or isinstance(error, DeadlineExceeded | Unreachable)


def files_may_come(error: BaseException) -> bool:
    """Whether the folder or its token is missing, which a manager creates when it starts."""
    of_token = isinstance(error, SpecError) and error.field == "token_file"
    of_a_file = isinstance(error, SharedDirectoryError) or of_token
    return of_a_file and isinstance(error.__context__, FileNotFoundError)


def awaiting(
    seconds: float,
    between: Callable[[], object] = lambda: None,
    *,
    when: Callable[[BaseException], bool] = manager_may_come,
) -> Retrying:
    """Return a retrying caller; after these `seconds` (0: one try), it raises the last error.

    `between` is called before each further try; it may turn to another manager, or raise. `when`
    says whether a call that failed with an error may succeed later.
    """

    def before_sleep(state: RetryCallState) -> None:
        if state.attempt_number == 1 and state.outcome is not None:
            log.warning("%s; waiting for up to %.0f s", state.outcome.exception(), seconds)
        between()

    return Retrying(
        retry=retry_if_exception(when),
        # Random, so that workers that wait for one manager do not all call it at the same moments.
        wait=wait_random_exponential(multiplier=0.1, max=1),
        stop=stop_after_delay(seconds),
        before_sleep=before_sleep,
        reraise=True,
    )
