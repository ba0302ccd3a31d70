"""Reads the experiments and the logs in a shared directory from files, without any process.

An experiment's record says how far it came. Each process keeps its own log in pieces
(`files/process_log.py`), which we merge by time. If a reader of logs comes again, it brings the
cursor of its last read, and gets the lines added since. A line has its host's time, so if clocks
differ, lines of several hosts are out of order.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from downpour.base.errors import StoreError
from downpour.core.spec import Meetings
from downpour.files.log_places import LEVELS, Level, LogLine, LogPlace, Piece
from downpour.files.store import SharedDirectory
from downpour.files.store.layout import RECORD_NAME
from downpour.files.store.shared_directory import lost_its_manager
from downpour.network.rpc.messages import ExperimentSummary, metrics_of
from downpour.record.journal import segments
from downpour.record.mirror import MirrorCopy
from downpour.record.record import has_record, is_exported
from downpour.record.record_lines import KINDS, EndLine, RecordLine
from downpour.record.result import Result, rounds_in

_USED = {"submitted", "prepared", "rescheduled", "dropped", "aggregated", "measured"}
_ENDED = {"finished", "failed", "cancelled"}
_UNUSED = KINDS.keys() - _USED - _ENDED
"""Kinds of lines without which a summary is the same."""
_LOST = "no manager has it now; the next one in this directory continues it"


@contextmanager
def stored_records(
    shared: SharedDirectory, *, experiment: str = "", last: int | None = None
) -> Iterator[Path]:
    """Yield a folder with the folders of experiments; for a bucket, a copy of its records.

    From a bucket, we copy all records, only this experiment's, or the `last` ones.
    """
    if shared.bucket is None:
        yield shared.experiments
        return
    with TemporaryDirectory(prefix="downpour-") as folder:
        MirrorCopy(shared, Path(folder)).fetch(experiment, last)
        yield Path(folder)


def experiments_in(folder: Path, last: int | None = None) -> tuple[ExperimentSummary, ...]:
    """Sum up the experiments whose folders are in this one, by when they last changed.

    States are the last written ones, so an experiment that lost its manager is still running. We
    leave out folders without a readable record. `last` is the most that we read; None: all.
    """
    return tuple(islice(_newest(folder), last))[::-1]


def _newest(folder: Path) -> Iterator[ExperimentSummary]:
    changed = {
        one: changed_seconds(one) for one in folder.glob("*") if one.is_dir() and has_record(one)
    }
    for one in sorted(changed, key=lambda one: changed[one], reverse=True):
        with suppress(StoreError):
            summary = _summary(rounds_in(one, _UNUSED))
            is_lost = not summary.state.ended and lost_its_manager(one)
            yield replace(summary, reason=_LOST) if is_lost else summary


def changed_seconds(folder: Path) -> float:
    """Return when an experiment's record grew last, in seconds since 1970."""
    record = folder / RECORD_NAME
    files = [record] if is_exported(record) else segments(folder)
    return max(path.stat().st_mtime for path in files)


def _summary(result: Result) -> ExperimentSummary:
    meetings, done = Meetings.of(result.spec), len(result.rounds)
    return ExperimentSummary(
        experiment=result.experiment,
        name=result.name,
        state=result.state,
        rounds_done=done,
        rounds_total=meetings.rounds,
        epochs_done=meetings.epoch_of(done),
        epochs_total=meetings.epochs_in_all,
        reason=result.reason,
        metrics=metrics_of(result.metrics),
        loss=result.test_loss,
        part=result.last_part,
    )


_STAMP = re.compile(r"-(\d{8}-\d{6})-[0-9a-f]+")


def submission_seconds(experiment: str) -> float:
    """Return when a user submitted an experiment, in seconds since 1970; 0 if its ID is short."""
    stamp = _STAMP.search(experiment)
    if stamp is None:
        return 0.0
    return datetime.strptime(stamp[1], "%Y%m%d-%H%M%S").replace(tzinfo=UTC).timestamp()


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
