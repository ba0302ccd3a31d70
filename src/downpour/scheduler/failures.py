"""What a task's failures say: that it would fail everywhere, or that it should wait a while."""

from __future__ import annotations

from collections.abc import Sequence

from downpour.values import REPEATABLE, Failure, FailureKind

_FIRST_WAIT_SECONDS = 0.5
_LONGEST_WAIT_SECONDS = 32.0


def failed_alike(failures: Sequence[Failure], workers: Sequence[str]) -> tuple[str, ...]:
    """Return where the last failure went word for word the same, each time; empty: it is no such.

    Only what follows from the task itself can: files that cannot be read and workers that are lost
    have nothing to do with each other, even where the same is said of them.

    Args:
        failures: those of one task, oldest first.
        workers: on which; as many.
    """
    last = failures[-1] if failures else None
    if last is None or last.kind not in REPEATABLE:
        return ()
    return tuple(w for one, w in zip(failures, workers, strict=True) if one == last)


def wait_seconds(failures: Sequence[Failure]) -> float:
    """Return how long a task waits after its last failure, at a patience of 1.

    Where the shared directory failed it would do so again at once, and its retries be used up
    before the directory is back; each such failure of the task doubles the time.
    """
    if not failures or failures[-1].kind is not FailureKind.STORE:
        return 0.0
    times = sum(one.kind is FailureKind.STORE for one in failures)
    return min(_FIRST_WAIT_SECONDS * 2.0 ** (times - 1), _LONGEST_WAIT_SECONDS)
