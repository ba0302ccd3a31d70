"""Threads, queues and time, as managers and workers use them.

`Threads` are this machine's. The simulator has others (`downpour_lab/simulated/threads.py`), whose
waits take virtual time, so it runs drivers, agents and command runners as they are. `Lanes` say
where a manager's commands wait for each other.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import Any

Job = Callable[[], None]


class Threads:
    """This machine's threads."""

    def now(self) -> float:
        """Return the seconds since some fixed moment."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait for some seconds."""
        time.sleep(seconds)

    def start(self, name: str, target: Callable[..., object], *args: Any) -> Thread:
        """Run a function in a thread, which does not keep the process alive."""
        thread = Thread(target=target, args=args, name=name, daemon=True)
        thread.start()
        return thread

    def queue(self) -> SimpleQueue[Any]:
        """Make a queue between threads; signal handlers may put items into it, too."""
        return SimpleQueue()

    def reply(self) -> Future[Any]:
        """Make the place of a result that another thread sets."""
        return Future()

    def flag(self) -> Event:
        """Make a flag for which threads can wait."""
        return Event()


THREADS = Threads()


class OrderedCalls:
    """A pool of threads; calls of one name run one after the other, in the order of submission.

    A cancellation must not overtake the assignment that it cancels. Workers do not wait for each
    other: a slow worker delays only its own calls, and occupies one thread of the pool.
    """

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="call")
        self._waiting: dict[str, deque[Job]] = {}
        self._lock = Lock()

    def submit(self, name: str, call: Job) -> None:
        """Run a call after all earlier calls of this name; it must not raise."""
        with self._lock:
            waiting = self._waiting.get(name)
            if waiting is not None:
                waiting.append(call)
                return
            # An empty queue means that a call of this name is running, and no other waits.
            self._waiting[name] = deque()
        self._pool.submit(self._run, name, call)

    def close(self) -> None:
        """Wait for the calls that have begun, and drop the others."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _run(self, name: str, call: Job) -> None:
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
                # After `close`, the pool raises here, which drops the calls behind this one.
                self._pool.submit(self._run, name, following)


class SerialExecutor:
    """One thread, which lives until `close`.

    Its thread is a daemon. If its work hangs, because a file server never answers, it delays the
    jobs behind it, but neither other executors nor the end of the process. (`concurrent.futures`
    joins its threads at exit, so a hung one would keep the process alive.)
    """

    def __init__(self, name: str) -> None:
        self._waiting = SimpleQueue[Job | None]()
        self._is_closed = False
        self._thread = THREADS.start(name, self._run)

    def submit(self, job: Job) -> None:
        """Run this after all earlier work; after `close`, drop it."""
        self._waiting.put(job)

    @property
    def is_behind(self) -> bool:
        """Whether anything waits for the running job."""
        return not self._waiting.empty()

    def close(self, timeout_seconds: float) -> None:
        """Wait at most `timeout_seconds` for the running job; drop waiting ones."""
        self._is_closed = True
        self._waiting.put(None)
        self._thread.join(timeout_seconds)

    def _run(self) -> None:
        while (job := self._waiting.get()) is not None:
            if not self._is_closed:
                job()


CALLS_AT_ONCE = 8
"""Enough to keep the workers busy; each call costs this process a fraction of a millisecond."""

_CLOSING_SECONDS = 30.0
"""The wait for running work when the manager ends; the next manager repeats unfinished work."""


class Lanes:
    """A manager's commands wait for each other in lanes; their jobs must not raise."""

    def __init__(self) -> None:
        self._calls = OrderedCalls(CALLS_AT_ONCE)
        self._works = SerialExecutor("work")
        self._evaluations = SerialExecutor("evaluation")

    def call(self, worker: str, job: Job) -> None:
        """Call a worker after all earlier calls to it."""
        self._calls.submit(worker, job)

    def work(self, job: Job) -> None:
        """Run work on parameters after all earlier work."""
        self._works.submit(job)

    @property
    def work_waits(self) -> bool:
        """Whether any work waits for the running one."""
        return self._works.is_behind

    def beside(self, job: Job) -> None:
        """Run an evaluation beside the work, after all earlier evaluations."""
        self._evaluations.submit(job)

    def alone(self, job: Job) -> None:
        """Run a job at once."""
        THREADS.start("preparation", job)

    def close(self) -> None:
        """Wait for running work, and begin nothing more."""
        self._calls.close()
        self._works.close(_CLOSING_SECONDS)
        self._evaluations.close(_CLOSING_SECONDS)
