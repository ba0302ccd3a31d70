"""The logs of a cluster's processes, merged by time; read from the folder, without any process.

Each process keeps its own log in pieces (`files/process_log.py`). If a reader comes again, it
brings the cursor of its last read, and gets the lines added since. A line has its host's time, so
if clocks differ, lines of several hosts are out of order.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from downpour.files.log_places import LEVELS, Level, LogLine, LogPlace, Piece
from downpour.files.store.layout import RECORD_NAME
from downpour.record.record_lines import EndLine, RecordLine
from downpour.record.stored_experiments import submission_seconds

READ_BYTES_MAX = 64 * 1024**2
"""Maximum bytes of one read; if there are more, we read the pieces that changed last."""
_AROUND_SECONDS = 5.0


LogCursor = Mapping[str, int]
"""How far a reader has read each piece, in bytes, by its name."""


@dataclass(frozen=True, slots=True)
class LogPage:
    """Lines in the order of their times, and the cursor that the next read takes.

    `skipped_bytes` is the size of the older pieces that the read left out.
    """

    lines: tuple[LogLine, ...]
    cursor: LogCursor
    skipped_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFilter:
    """Which lines are wanted: their times, in seconds since 1970, their least level, their process.

    `of` is the name of a process, such as `worker-1` or `manager`, or of a host; empty: all.
    """

    begin: float = 0.0
    end: float = math.inf
    level: Level = "debug"
    of: str = ""

    def takes(self, line: LogLine) -> bool:
        """Return whether a line is wanted."""
        return (
            self.begin <= line.at <= self.end
            and LEVELS.index(line.level) >= LEVELS.index(self.level)
            and self.of in {"", line.name, line.host}
        )


def read_logs(
    place: LogPlace,
    since: LogCursor | None = None,
    *,
    changed_after: float = 0.0,
    bytes_max: int = READ_BYTES_MAX,
) -> LogPage:
    """Return the lines added since a cursor; without one, all existing lines.

    We leave out pieces that have not changed since `changed_after`, in seconds since 1970. If the
    new lines have more than `bytes_max`, we read the pieces that changed last.
    """
    before = since or {}
    pieces = place.pieces()
    # Drop removed pieces, so that a cursor stays as small as the folder.
    reached = {one.name: before[one.name] for one in pieces if one.name in before}
    lines: list[LogLine] = []
    left_bytes, skipped_bytes = bytes_max, 0
    for piece in sorted(pieces, key=lambda one: one.changed_seconds, reverse=True):
        begin = reached.get(piece.name, 0)
        if piece.size_bytes <= begin or piece.changed_seconds < changed_after:
            continue
        left_bytes -= piece.size_bytes - begin
        if left_bytes < 0:
            skipped_bytes += piece.size_bytes - begin
            reached[piece.name] = piece.size_bytes
            continue
        reached[piece.name] = begin + _read(place, piece, begin, lines)
    lines.sort(key=lambda line: line.at)  # stable: keeps a process's own order within a moment
    return LogPage(tuple(lines), reached, skipped_bytes)


def _read(place: LogPlace, piece: Piece, begin: int, into: list[LogLine]) -> int:
    """Add the whole lines of a piece from a byte on; return how many bytes they have."""
    content = place.read(piece.name, begin)
    whole = content[: content.rfind(b"\n") + 1]
    into += filter(None, map(LogLine.of, whole.splitlines()))
    return len(whole)


def span_of(experiment: str, record: Sequence[tuple[float, RecordLine]]) -> tuple[float, float]:
    """Return when processes worked on an experiment: its beginning and end, in seconds since 1970.

    A running experiment has no end yet. If an ID has no time, its experiment may be from any time.
    A record's own seconds leave out the time without a manager, so a caller may know a later end.
    """
    ended = (at for at, line in reversed(record) if isinstance(line, EndLine))
    return span_until(experiment, next(ended, math.inf) - record[0][0])


def span_until(experiment: str, seconds: float) -> tuple[float, float]:
    """Return the span of an experiment that ended this long after its submission; see `span_of`."""
    submitted_at = submission_seconds(experiment)
    if not submitted_at:
        return 0.0, math.inf
    return submitted_at - _AROUND_SECONDS, submitted_at + seconds + _AROUND_SECONDS


def exported_seconds(folder: Path | None) -> float:
    """Return when the manager wrote the record of an ended experiment, in seconds since 1970.

    The clock is that of the folder's machine. Return 0 if the record does not exist.
    """
    with suppress(OSError):
        return (folder / RECORD_NAME).stat().st_mtime if folder else 0.0
    return 0.0
