"""Calls to workers: concurrent for many workers, in order for each worker.

The order matters to a worker, because a cancellation must not overtake the assignment that it
cancels. Workers do not wait for each other: a slow worker delays only its own calls, and occupies
one thread of the pool.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

Call = Callable[[], None]


class OrderedCalls:
    """A pool of threads; calls of one name run one after the other, in the order of submission."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="call")
        self._waiting: dict[str, deque[Call]] = {}
        self._lock = Lock()

    def submit(self, name: str, call: Call) -> None:
        """Run a call after all earlier calls of this name; it must not raise."""
        with self._lock:
            waiting = self._waiting.get(name)
            if waiting is not None:
                waiting.append(call)
                return
            # An empty queue means that one call of this name is running and no other waits behind
            # it.
            self._waiting[name] = deque()
        self._pool.submit(self._run, name, call)

    def close(self) -> None:
        """Wait for the calls that have begun, and drop the others."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _run(self, name: str, call: Call) -> None:
        try:
            call()
        finally:
            with self._lock:
                following = self._waiting[name].popleft() if self._waiting[name] else None
                if following is None:
                    del self._waiting[name]
            # Submit the next call to the pool instead of running it here. A worker with a long
            # queue must not keep a thread while other workers wait for one.
            if following is not None:
                # After `close`, the pool raises here, and this call's future takes the exception.
                # That drops the calls behind it.
                self._pool.submit(self._run, name, following)
