"""The logs during an experiment, for its viewers: we read the folder once for all of them.

A feed keeps the last lines and numbers them in reading order, so a number is a viewer's whole
state. A second store keeps warnings and errors, which a talkative process would otherwise push out.
"""

from __future__ import annotations

import math
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from downpour.experiments.reading.logs import LogCursor, LogFilter, read_logs
from downpour.files.logs.log_line import LEVELS, LogLine
from downpour.files.logs.log_places import LogPlace

PAGE_LINES = 500
_PAGE_CHARACTERS = 1_000_000
_KEPT_CHARACTERS = 4_000_000
_READ_BYTES = 16 * 1024**2
_NAMES_MAX = 2000
_FEEDS_MAX = 4
_LOOK_SECONDS = 5.0
"""The time between two checks whether there are logs at all."""
_GRAVE = LEVELS.index("warning")
Row = tuple[float, str, str, str, str, str, str]
"""Seconds since 1970, host, process, level, source, text and traceback."""


@dataclass(slots=True)
class _LastLines:
    """The newest lines that fit, with their numbers; `dropped` is the last number that did not."""

    dropped: int = 0
    _lines: deque[tuple[int, LogLine]] = field(default_factory=deque)
    _characters: int = 0

    def add(self, number: int, line: LogLine) -> None:
        self._lines.append((number, line))
        self._characters += _characters_of(line)
        while self._characters > _KEPT_CHARACTERS:
            self.dropped, oldest = self._lines.popleft()
            self._characters -= _characters_of(oldest)

    def page(self, after: int, wanted: LogFilter) -> tuple[list[LogLine], bool]:
        """Return the newest wanted lines after a number, and whether these are all wanted lines."""
        found: list[LogLine] = []
        room = _PAGE_CHARACTERS
        for number, line in reversed(self._lines):
            if number <= after:
                break
            if not wanted.takes(line):
                continue
            room -= _characters_of(line)
            if len(found) == PAGE_LINES or (found and room < 0):
                return found[::-1], False
            found.append(line)
        return found[::-1], after >= self.dropped


class LogFeed:
    """The logs of one experiment; safe to share between threads."""

    def __init__(self, place: LogPlace, clock: Callable[[], float] = time.monotonic) -> None:
        self._place = place
        self._clock = clock
        self._name = secrets.token_hex(4)
        self._cursor: LogCursor | None = None
        self._looked = -math.inf
        self._number = 0
        self._all = _LastLines()
        self._grave = _LastLines()
        self._names: dict[str, None] = {}
        self._is_cut = False
        self._lock = Lock()

    def page(self, after: str, span: LogFilter, wanted: LogFilter) -> dict[str, Any]:
        """Return the newest lines that a viewer wants and does not know, as the page receives them.

        Args:
            after: the `next` of the viewer's last answer; empty for a new viewer.
            span: the experiment's time.
            wanted: the lines that the viewer wants to see.

        Raises:
            SharedDirectoryError: the logs cannot be read.
        """
        with self._lock:
            self._read(span)
            feed, _, number = after.partition(".")
            known = int(number) if feed == self._name else 0
            kept = self._grave if LEVELS.index(wanted.level) >= _GRAVE else self._all
            lines, is_all = kept.page(known, wanted)
            # If a viewer has missed lines, it starts from scratch, because its list would have a
            # gap.
            is_new = not known or not is_all
            return {
                "lines": [_row(line) for line in lines],
                "next": f"{self._name}.{self._number}",
                "anew": is_new,
                "older": is_new and (self._is_cut or not is_all),
                "names": list(self._names),
            }

    def _read(self, span: LogFilter) -> None:
        """Take in the folder's new lines, but not too often."""
        now = self._clock()
        if now - self._looked < self._place.interval_seconds:
            return
        self._looked = now
        begin = span.begin if self._cursor is None else 0.0
        page = read_logs(self._place, self._cursor, changed_after=begin, bytes_max=_READ_BYTES)
        self._cursor = page.cursor
        self._is_cut = self._is_cut or page.skipped_bytes > 0
        for line in filter(span.takes, page.lines):
            self._number += 1
            self._all.add(self._number, line)
            if LEVELS.index(line.level) >= _GRAVE:
                self._grave.add(self._number, line)
            if len(self._names) < _NAMES_MAX:
                self._names[line.name] = None


class LogFeeds:
    """The feeds of the experiments whose logs viewers have read last."""

    def __init__(self, place: LogPlace) -> None:
        self._place = place
        self._feeds: dict[str, LogFeed] = {}  # the feed with the latest request comes last
        self._are_kept = False
        self._looked = -math.inf

    def are_kept(self) -> bool:
        """Return whether processes keep logs here; may take long.

        Raises:
            SharedDirectoryError: the place cannot be read.
        """
        now = time.monotonic()
        if not self._are_kept and now - self._looked >= _LOOK_SECONDS:
            self._looked = now
            self._are_kept = bool(self._place.pieces())
        return self._are_kept

    def of(self, experiment: str) -> LogFeed:
        """Return the feed of an experiment."""
        feed = self._feeds.pop(experiment, None) or LogFeed(self._place)
        self._feeds[experiment] = feed
        for name in list(self._feeds)[:-_FEEDS_MAX]:
            del self._feeds[name]
        return feed


def _characters_of(line: LogLine) -> int:
    return 100 + len(line.text) + len(line.trace)


def _row(line: LogLine) -> Row:
    return line.at, line.host, line.name, line.level, line.source, line.text, line.trace
