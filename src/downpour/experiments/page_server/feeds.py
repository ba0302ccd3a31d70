"""A feed follows one record for all of its viewers; `Feeds` holds a bounded number of them."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from downpour.base.errors import FileCorrupt, StoreError
from downpour.experiments.dashboard.history import Told, task_history
from downpour.experiments.dashboard.model import RecordTables
from downpour.experiments.dashboard.plain import Fields
from downpour.experiments.dashboard.sources import RecordSource
from downpour.experiments.page_server.event_stream import Chunk, event

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
        folder: the experiment's folder.
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
        self._source = RecordSource(folder)
        self._away = ""
        self._damaged = ""
        self._changed = asyncio.Event()
        self._reading = asyncio.Lock()
        self._following: asyncio.Task[None] | None = None
        self._clock = _NO_CLOCK
        self._frames: dict[tuple[int, int], Chunk] = {}

    @property
    def trouble(self) -> str:
        """The trouble with the record, in one line; empty if nothing is wrong."""
        return self._away or self._damaged

    @property
    def changed(self) -> asyncio.Event:
        """An event that the next change sets."""
        return self._changed

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
        frame |= {"clock": round(time.time(), 3), "logs": self._logs}
        return json.dumps(frame, separators=(",", ":"), allow_nan=False)

    async def history(self, task: tuple[int, int]) -> list[Told]:
        """Return the history of a task, by round and shard from 0, in words."""
        await self.catch_up(60.0)
        return await asyncio.to_thread(task_history, self.folder, self.model.start, task)

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
            before = self.trouble, self.is_caught_up
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
            if lines or before != (self.trouble, self.is_caught_up):
                self._tell()
            return bool(lines)

    def _gained(self) -> tuple[list[Fields], tuple[str, float]]:
        """Read the next lines, and find out when their clock begins."""
        with suppress(StoreError):
            self._logs = self._has_logs()
        lines = self._source.read(_BATCH_LINES)
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
        self._changed.set()
        self._changed = asyncio.Event()


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
            with suppress(KeyError):
                del self._feeds[name]
        return feed

    async def end(self) -> None:
        """Give all viewers the last lines, and wake them."""
        await asyncio.gather(*(feed.end() for feed in self._feeds.values() if feed.viewers))
