"""Long work of the manager: on a lane one thing after the other, lanes beside each other.

A lane's thread is a daemon. What hangs on it, because a file server or a download never answers,
holds up what waits behind it there, and neither other lanes nor the end of the process.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Event, Thread

Work = Callable[[], None]


class SerialExecutor:
    """One thread, from now to `close`."""

    def __init__(self, name: str) -> None:
        self._waiting: SimpleQueue[tuple[Work, Future[None]] | None] = SimpleQueue()
        self._closed = Event()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Work) -> Future[None]:
        """Do this after all that was submitted before; it is dropped where the lane was closed."""
        done: Future[None] = Future()
        self._waiting.put((work, done))
        return done

    def finish(self) -> None:
        """Take nothing more, and end when all is done."""
        self._waiting.put(None)

    def close(self, timeout_seconds: float) -> None:
        """Let what is running end, up to a time, and drop what waits."""
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
            except BaseException as error:  # noqa: BLE001 - for whoever waits for it
                done.set_exception(error)
            else:
                done.set_result(None)
