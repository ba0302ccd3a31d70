"""Runs looks at a folder that may never end: each in its own thread, with a time limit.

A thread that waits for an absent file server waits in the kernel, and not even Ctrl-C interrupts
it. So the main thread only waits for the thread that runs the check; a thread that hangs ends with
the process.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from threading import Thread

from downpour.cluster.operations.finding import Finding, bad, unknown

_GRACE_SECONDS = 3.0


def file_server_late(seconds: float) -> Finding:
    """Return the finding of a look at a folder that takes longer than this."""
    seen = f"no answer for {seconds:g} s"
    return bad(seen, "check that the file server is up and can be reached")


def store_late(seconds: float) -> Finding:
    """Return the finding of a look at an object store that takes longer than this."""
    return bad(f"no answer for {seconds:g} s", "check that the object store can be reached")


class Attempts:
    """Runs one check after the other; after a check that hangs, it begins no other.

    Args:
        limit_seconds: How long a check may take.
        late: Returns the finding of a check that takes longer. It must not name a cause that the
            check does not look at.
    """

    def __init__(
        self, limit_seconds: float, late: Callable[[float], Finding] = file_server_late
    ) -> None:
        self._limit_seconds = limit_seconds
        self._late = late
        self._thread: Thread | None = None

    def make(self, check: Callable[[], Finding]) -> Finding:
        """Return what a check finds, or that it does not end."""
        if self._is_busy(0.0):
            return unknown("an earlier check has not ended")
        outcome = Future[Finding]()
        thread = self._begin(partial(_settle, outcome, check))
        try:
            finding = outcome.result(self._limit_seconds)
        except TimeoutError:
            return self._late(self._limit_seconds)
        thread.join()
        return finding

    def finish(self, clean: Callable[[], object]) -> None:
        """Clean up once the last check has ended; not if it hangs, because cleaning would, too."""
        if not self._is_busy(_GRACE_SECONDS):
            self._begin(clean)
            self._is_busy(self._limit_seconds)

    def _begin(self, work: Callable[[], object]) -> Thread:
        self._thread = Thread(target=work, name="attempt", daemon=True)
        self._thread.start()
        return self._thread

    def _is_busy(self, wait_seconds: float) -> bool:
        if self._thread is not None:
            self._thread.join(wait_seconds)
        return self._thread is not None and self._thread.is_alive()


def _settle(outcome: Future[Finding], check: Callable[[], Finding]) -> None:
    try:
        outcome.set_result(check())
    except BaseException as error:  # noqa: BLE001 - raised where the outcome is read
        outcome.set_exception(error)
