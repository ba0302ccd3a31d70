"""Shows a user's code another time than the clock's, to find out whether a result depends on it.

Only calls from the user's own files get the other time. Torch, other libraries, and our own threads
get the real one.
"""

from __future__ import annotations

import datetime as dt
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from downpour.learning.blame import place_of

_AHEAD = dt.timedelta(days=401, hours=5, minutes=7, seconds=11)
"""Every unit of a date differs, and an odd number of days, hours, minutes and seconds has passed.
It is ahead, because code that waits for a moment would wait for a year if the clock went back."""

_SECONDS = ("time", "monotonic", "perf_counter")
_DATES = ("localtime", "gmtime", "ctime")


@contextmanager
def another_clock(modules: Sequence[ModuleType]) -> Iterator[list[str]]:
    """Return a context in which the code of these modules meets another time.

    Yields:
        The places that have asked for the time, so far.
    """
    clock = _Clock({str(module.__file__) for module in modules})
    homes = [time, dt, *modules]
    kept = [(home, name, value) for home in homes for name, value in vars(home).items()]
    replaced = {id(getattr(home, name)): (home, name) for home, name in clock.known()}
    for home, name, value in kept:
        if id(value) in replaced:
            setattr(home, name, clock.instead(*replaced[id(value)]))
    try:
        yield clock.asked
    finally:
        for home, name, value in kept:
            if id(value) in replaced:
                setattr(home, name, value)


class _Clock:
    def __init__(self, files: set[str]) -> None:
        self._files = files
        self.asked: list[str] = []

    @staticmethod
    def known() -> Iterator[tuple[ModuleType, str]]:
        for name in (*_SECONDS, *(f"{one}_ns" for one in _SECONDS), *_DATES, "strftime"):
            yield time, name
        yield dt, "datetime"
        yield dt, "date"

    def instead(self, home: ModuleType, name: str) -> Any:
        """Return what the user's code gets instead of a function or a class of these modules."""
        real = getattr(home, name)
        if home is dt:
            return self._dates(real)
        if name in _DATES or name == "strftime":
            return self._dated(real, without_time=int(name == "strftime"))
        by = _AHEAD.total_seconds()
        return self._ahead(real, int(by) * 10**9 if name.endswith("_ns") else by)

    def _is_theirs(self) -> bool:
        """Whether the code that called our caller is the user's; notes where it is."""
        frame = sys._getframe(2)  # noqa: SLF001
        code = frame.f_code
        if code.co_filename not in self._files:
            return False
        self.asked.append(place_of(code.co_filename, frame.f_lineno, code.co_name))
        return True

    def _ahead(self, real: Callable[..., Any], by: float) -> Callable[..., Any]:
        def told(*given: Any) -> Any:
            return real(*given) + (by if self._is_theirs() else 0)

        return told

    def _dated(self, real: Callable[..., Any], without_time: int) -> Callable[..., Any]:
        """Replace a function that takes the current time if its caller gives none."""
        now, convert = time.time, time.localtime

        def told(*given: Any) -> Any:
            if len(given) > without_time or not self._is_theirs():
                return real(*given)
            later = now() + _AHEAD.total_seconds()
            return real(*given, convert(later) if without_time else later)

        return told

    def _dates(self, real: Any) -> type:
        is_theirs = self._is_theirs

        class Kind(type(real)):  # type: ignore[misc]
            def __instancecheck__(cls, value: object) -> bool:
                return isinstance(value, real)

        class Ahead(real, metaclass=Kind):  # type: ignore[misc]
            @classmethod
            def today(cls) -> Any:
                return real.today() + (_AHEAD if is_theirs() else dt.timedelta())

            @classmethod
            def now(cls, tz: Any = None) -> Any:
                return real.now(tz) + (_AHEAD if is_theirs() else dt.timedelta())

            @classmethod
            def utcnow(cls) -> Any:
                return real.utcnow() + (_AHEAD if is_theirs() else dt.timedelta())

        Ahead.__name__ = Ahead.__qualname__ = real.__name__
        return Ahead
