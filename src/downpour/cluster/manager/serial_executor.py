"""Runs the manager's long work: each executor runs its jobs in order, beside the other executors.

An executor's thread is a daemon. If its work hangs, because a file server or a download never
answers, it delays the jobs behind it, but neither other executors nor the end of the process.
(`concurrent.futures` joins its threads at exit, so a hung one would keep the process alive.)
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Event, Thread

Work = Callable[[], None]


class SerialExecutor:
    """One thread, which lives until `close` or `finish`."""

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
