"""Judges a task's failures: would every worker fail, or should a retry wait?"""

from __future__ import annotations

from collections.abc import Sequence

from downpour.base.states import REPEATABLE, Failure, FailureKind

# Measured without a wait: when the shared directory was gone for a few seconds, a task used up four
# attempts in a tenth of a second. With these waits, three retries last for more than three seconds.
_FIRST_WAIT_SECONDS = 0.5
_LONGEST_WAIT_SECONDS = 32.0


def failed_alike(failures: Sequence[Failure], workers: Sequence[str]) -> tuple[str, ...]:
    """Return the workers on which the task failed exactly like the last time.

    Only a failure that follows from the task itself can be the same on every worker. Unreadable
    files and lost workers are unrelated to the task, even if the reasons agree, so for these the
    result is empty.

    Args:
        failures: the failures of one task, oldest first.
        workers: the worker of each failure.
    """
    last = failures[-1] if failures else None
    if last is None or last.kind not in REPEATABLE:
        return ()
    return tuple(w for one, w in zip(failures, workers, strict=True) if one == last)


def wait_seconds(failures: Sequence[Failure]) -> float:
    """Return how long a task waits after its last failure, at a patience of 1.

    Only a failure of the shared directory makes it wait. Without the wait, the next attempts would
    fail as well, and use up all retries before the directory is back. Each such failure of the task
    doubles the time.
    """
    if not failures or failures[-1].kind is not FailureKind.STORE:
        return 0.0
    # We count this task's failures only. Other shards continue meanwhile, and show whether the
    # directory is back.
    times = sum(one.kind is FailureKind.STORE for one in failures)
    return min(_FIRST_WAIT_SECONDS * 2.0 ** (times - 1), _LONGEST_WAIT_SECONDS)
