"""Threads for a manager's commands, and the order of calls and of long work."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from threading import Event, Lock, Thread

Call = Callable[[], None]


class OrderedCalls:
    """A pool of threads; calls of one name run one after the other, in the order of submission.

    The order matters to a worker, because a cancellation must not overtake the assignment that it
    cancels. Workers do not wait for each other: a slow worker delays only its own calls, and
    occupies one thread of the pool.
    """

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


Work = Callable[[], None]


class SerialExecutor:
    """One thread, which lives until `close` or `finish`.

    Its thread is a daemon. If its work hangs, because a file server or a download never answers, it
    delays the jobs behind it, but neither other executors nor the end of the process.
    (`concurrent.futures` joins its threads at exit, so a hung one would keep the process alive.)
    """

    def __init__(self, name: str) -> None:
        self._waiting: SimpleQueue[tuple[Work, Future[None]] | None] = SimpleQueue()
        self._closed = Event()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Work) -> Future[None]:
        """Run this after all earlier work; after `close`, drop it."""
        done: Future[None] = Future()
        self._waiting.put((work, done))
        return done

    @property
    def is_behind(self) -> bool:
        """Whether anything waits for the running job."""
        return not self._waiting.empty()

    def finish(self) -> None:
        """Accept no more work; the thread ends when all work is done."""
        self._waiting.put(None)

    def close(self, timeout_seconds: float) -> None:
        """Wait at most `timeout_seconds` for the running job; drop waiting ones."""
        self._closed.set()
        self.finish()
        self._thread.join(timeout_seconds)

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            work, done = item
            if self._closed.is_set():
                done.cancel()
                continue
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - raised where the future is read
                done.set_exception(error)
            else:
                done.set_result(None)


CALLS_AT_ONCE = 8
"""Enough to keep the workers busy; each call costs this process a fraction of a millisecond."""

_CLOSING_SECONDS = 30.0
"""The wait for running work when the manager ends; the next manager repeats unfinished work."""

Job = Callable[[], None]


class Lanes:
    """The lanes: calls to workers, work on parameters, evaluations beside it, and preparations."""

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
        """Run an evaluation beside the work."""
        self._evaluations.submit(job)

    def alone(self, job: Job) -> None:
        """Run a job at once, in a separate thread."""
        lane = SerialExecutor("preparation")
        lane.submit(job)
        lane.finish()

    def close(self) -> None:
        """Wait for running work, and begin nothing more."""
        self._calls.close()
        self._works.close(_CLOSING_SECONDS)
        self._evaluations.close(_CLOSING_SECONDS)
