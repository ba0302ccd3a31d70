"""Calls to workers: to many at once, to each one in order.

Order matters to one worker, because a cancellation must not overtake the assignment it is about.
Workers do not wait for each other: one that answers slowly holds up its own calls alone, and one of
the pool's threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

Call = Callable[[], None]


class OrderedCalls:
    """A pool of threads; calls under one name run one after the other, in the order given."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="call")
        self._waiting: dict[str, deque[Call]] = {}
        self._lock = Lock()

    def submit(self, name: str, call: Call) -> None:
        """Run a call after all that were given under this name before; it must not raise."""
        with self._lock:
            waiting = self._waiting.get(name)
            if waiting is not None:
                waiting.append(call)
                return
            self._waiting[name] = deque()
        self._pool.submit(self._run, name, call)

    def close(self) -> None:
        """Let the calls that have begun end, begin no more."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _run(self, name: str, call: Call) -> None:
        try:
            call()
        finally:
            with self._lock:
                following = self._waiting[name].popleft() if self._waiting[name] else None
                if following is None:
                    del self._waiting[name]
            if following is not None:
                self._pool.submit(self._run, name, following)
