"""Calls a function in its own thread, so that a slow or broken one blocks nothing else."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from queue import Full, Queue
from threading import Thread
from typing import Generic, TypeVar

from downpour.host.text import shortened

log = logging.getLogger(__name__)

WAITING_MAX = 1000
"""How many values may wait for a slow function; the function misses any further ones."""
CLOSE_SECONDS = 5.0
"""How long a run that ends may wait for a user's function."""

_Value = TypeVar("_Value")


class Background(Generic[_Value]):
    """Calls a function with one value after another; `take` never waits for it.

    We log a function's error once, with its name. The function still gets later values.

    Args:
        name: The function's name in the log.
        function: Takes a value; may raise anything.
        waiting_max: How many values may wait before the function misses further ones.
    """

    def __init__(
        self, name: str, function: Callable[[_Value], object], waiting_max: int = WAITING_MAX
    ) -> None:
        self._name = name
        self._function = function
        # None ends the thread.
        self._values: Queue[tuple[_Value] | None] = Queue(waiting_max)
        self._left_out = 0
        self._has_failed = False
        self._thread = Thread(target=self._run, name=f"background {name}", daemon=True)
        self._thread.start()

    def take(self, value: _Value) -> None:
        """Hand over a value; drop it if too many wait."""
        try:
            self._values.put_nowait((value,))
        except Full:
            self._left_out += 1

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Wait until the function has had every value, but no longer than `seconds`."""
        deadline = time.monotonic() + seconds
        try:
            self._values.put(None, timeout=seconds)
        except Full:
            self._left_out += self._values.qsize()
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            log.warning("%s has not returned after %.0f s; we stop waiting", self._name, seconds)
        if self._left_out:
            log.warning("%s was too slow: it missed %d calls", self._name, self._left_out)

    def _run(self) -> None:
        while (item := self._values.get()) is not None:
            try:
                self._function(*item)
            except Exception as error:  # noqa: BLE001 - whatever a user's function raises
                self._tell(error)

    def _tell(self, error: Exception) -> None:
        if not self._has_failed:
            self._has_failed = True
            what = shortened(f"{type(error).__name__}: {error}")
            log.warning("%s raised %s; its later errors are not shown", self._name, what)
            log.debug("%s raised", self._name, exc_info=error)
