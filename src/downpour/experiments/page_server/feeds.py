"""A feed follows one record for all of its viewers; `Feeds` holds a bounded number of them."""

import asyncio
import json
import math
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

from downpour.base.errors import FileCorrupt, StoreError
from downpour.experiments.page_server.viewers import Chunk, event
from downpour.files.log_places import LEVELS, LogLine, LogPlace
from downpour.files.store.shared_directory import lost_its_manager
from downpour.record.record import task_lines
from downpour.record.stored_experiments import LogCursor, LogFilter, read_logs
from downpour.show.dashboard.columns import Fields
from downpour.show.dashboard.model import RecordTables
from downpour.show.dashboard.page_data import RecordSource
from downpour.show.dashboard.results import Told, histories

TICK_SECONDS = 0.5
"""The time between two looks at an idle record, so a viewer gets two frames a second."""
FEEDS_MAX = 8
"""Maximum experiments in memory without a viewer; each takes at most tens of megabytes."""
_BATCH_LINES = 2500
"""Lines to fold at a time: about 20 ms, during which the server answers nothing else."""
_FRAME_LINES = 6000
"""Lines whose rows come in one frame: fewer than 20,000 rows."""
_FRAMES_MAX = 16
"""Frames to keep for other viewers, at most a few hundred kilobytes each."""

_NO_CLOCK = "", math.inf
Refresh = Callable[[], None]


class RecordFeed:
    """The tables of one experiment, and its viewers' frames.

    Args:
        refresh: called in a thread before each look, to fetch a record's new parts from a bucket.
        has_logs: called in a thread; says whether there are process logs to show.
    """

    def __init__(
        self,
        folder: Path,
        refresh: Refresh = lambda: None,
        has_logs: Callable[[], bool] = lambda: False,
    ) -> None:
        self.model = RecordTables()
        self.viewers = 0
        self.is_caught_up = False
        self.folder = folder
        self._refresh = refresh
        self._has_logs = has_logs
        self._logs = False
        self._led = True
        self._looked_at = 0.0
        self._source = RecordSource(folder)
        self._away = ""
        self._damaged = ""
        self.changed = asyncio.Event()
        """The next change sets it."""
        self._reading = asyncio.Lock()
        self._following: asyncio.Task[None] | None = None
        self._clock = _NO_CLOCK
        self._frames: dict[tuple[int, int], Chunk] = {}

    @property
    def trouble(self) -> str:
        """The trouble with the record, in one line; empty if nothing is wrong."""
        return self._away or self._damaged

    @contextmanager
    def viewing(self) -> Iterator[None]:
        """Follow the record while the block runs."""
        self.viewers += 1
        if self._following is None:
            self._following = asyncio.create_task(self._follow())
        try:
            yield
        finally:
            self.viewers -= 1

    async def catch_up(self, seconds: float) -> None:
        """Fold the record's lines, for at most this long."""
        deadline = time.monotonic() + seconds
        while await self._step() and time.monotonic() < deadline:
            pass

    def frame(self, after: int) -> tuple[Chunk, int]:
        """Return the frame for a viewer that knows line `after`, and the line it knows afterward.

        All viewers that know the same line share one frame.
        """
        upto = min(self.model.line, after + _FRAME_LINES)
        found = self._frames.get((after, upto))
        if found is None:
            if len(self._frames) >= _FRAMES_MAX:
                self._frames.clear()
            found = self._frames[after, upto] = event("frame", self.frame_text(after, upto), upto)
        return found, upto

    def frame_text(self, after: int, upto: int) -> str:
        """Return a frame as JSON."""
        frame = self.model.since(after, upto)
        frame |= {"clock": round(time.time(), 3), "logs": self._logs, "led": self._led}
        return json.dumps(frame, separators=(",", ":"), allow_nan=False)

    async def history(self, task: tuple[int, int]) -> list[Told]:
        """Return the history of a task, by round and shard from 0, in words."""
        await self.catch_up(60.0)
        return await asyncio.to_thread(
            lambda: list(histories(task_lines(self.folder, *task), self.model.start))
        )

    async def end(self) -> None:
        """Fold the last lines, and wake all viewers."""
        await self.catch_up(2.0)
        self._tell()

    async def _follow(self) -> None:
        # Never cancel this: we would lose lines that a thread has read by then.
        try:
            while self.viewers:
                if not await self._step():
                    await asyncio.sleep(TICK_SECONDS)
        finally:
            self._following = None

    async def _step(self) -> bool:
        """Fold the next lines; return whether more may be ready now."""
        async with self._reading:
            before = self.trouble, self.is_caught_up, self._led
            lines: list[Fields] = []
            clock = _NO_CLOCK
            try:
                if self.is_caught_up:
                    await asyncio.to_thread(self._refresh)
                lines, clock = await asyncio.to_thread(self._gained)
                self._away = ""
            except FileCorrupt as error:
                self._damaged = self._damaged or str(error)
            except StoreError as error:
                self._away = str(error)
            for fields in lines:
                try:
                    self.model.take(fields)
                except ValueError as error:
                    self._damaged = self._damaged or f"{error}; it is left out"
            self.is_caught_up = not lines
            if lines:
                self._set_clock(clock)
            if lines or before != (self.trouble, self.is_caught_up, self._led):
                self._tell()
            return bool(lines)

    def _gained(self) -> tuple[list[Fields], tuple[str, float]]:
        """Read the next lines, and find out when their clock begins."""
        with suppress(StoreError):
            self._logs = self._has_logs()
        lines = self._source.read(_BATCH_LINES)
        if time.monotonic() - self._looked_at > _LOOK_SECONDS:
            self._looked_at = time.monotonic()
            self._led = not lost_its_manager(self.folder)
        try:
            return lines, self._source.clock() if lines else _NO_CLOCK
        except StoreError:  # a run may have removed its journal meanwhile
            return lines, _NO_CLOCK

    def _set_clock(self, clock: tuple[str, float]) -> None:
        # Keep a file's earliest value: lines may be written late, but never early.
        file, begins = clock
        if math.isfinite(begins) and (file != self._clock[0] or begins < self._clock[1]):
            self._clock = clock
            self.model.set_clock(begins)

    def _tell(self) -> None:
        self._frames.clear()
        self.changed.set()
        self.changed = asyncio.Event()


class Feeds:
    """Feeds by their experiment's ID; of the feeds without a viewer, the newest few stay."""

    def __init__(self, make: Callable[[str], RecordFeed | None]) -> None:
        self._make = make
        self._feeds: dict[str, RecordFeed] = {}  # the feed with the latest request comes last

    def of(self, experiment: str) -> RecordFeed | None:
        """Return the feed of an experiment; None if the experiment does not exist."""
        feed = self._feeds.pop(experiment, None) or self._make(experiment)
        if feed is None:
            return None
        self._feeds[experiment] = feed
        unseen = [name for name, one in self._feeds.items() if not one.viewers]
        for name in unseen[:-FEEDS_MAX]:
            del self._feeds[name]
        return feed

    async def end(self) -> None:
        """Give all viewers the last lines, and wake them."""
        await asyncio.gather(*(feed.end() for feed in self._feeds.values() if feed.viewers))


PAGE_LINES = 500
_PAGE_CHARACTERS = 1_000_000
_KEPT_CHARACTERS = 4_000_000
_READ_BYTES = 16 * 1024**2
_NAMES_MAX = 2000
_FEEDS_MAX = 4
_LOOK_SECONDS = 5.0
"""The time between two checks whether there are logs at all, and whether a manager lives."""
_GRAVE = LEVELS.index("warning")


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
                "lines": [
                    (line.at, line.host, line.name, line.level, line.source, line.text, line.trace)
                    for line in lines
                ],
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
        self.of: Callable[[str], LogFeed] = lru_cache(_FEEDS_MAX)(lambda _: LogFeed(place))
        """Returns the feed of an experiment."""
        self._are_kept = False
        self._looked = -math.inf

    def are_kept(self) -> bool:
        """Return whether processes keep logs here; may take long."""
        now = time.monotonic()
        if not self._are_kept and now - self._looked >= _LOOK_SECONDS:
            self._looked = now
            self._are_kept = bool(self._place.pieces())
        return self._are_kept


def _characters_of(line: LogLine) -> int:
    return 100 + len(line.text) + len(line.trace)
