"""Logs of processes that never ran, beside a record whose ID says when it was submitted."""

from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from downpour.files.log_places import FOLDER, FolderLogs, Level, LogLine
from downpour.record.record import read_record
from downpour.record.record_lines import SubmittedLine
from tests.show.dashboard.records import texts

RECORDED = Path(__file__).parents[2] / "recorded"
EXPERIMENT = "uneven-20260102-030405-51c0"
SUBMITTED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()


def recorded_at(root: Path) -> Path:
    """Write the record of a hand-over to a shared directory; returns the experiment's folder."""
    folder = root / "experiments" / EXPERIMENT
    folder.mkdir(parents=True)
    lines = [
        (at, replace(line, experiment=EXPERIMENT) if isinstance(line, SubmittedLine) else line)
        for at, line in read_record(RECORDED / "handoff" / "record.jsonl")
    ]
    (folder / "record.jsonl").write_text("".join(texts(iter(lines))))
    return folder


def logged(
    root: Path,
    text: str,
    *,
    at: float = 1.0,
    name: str = "d",
    level: Level = "info",
    trace: str = "",
    source: str = "downpour",
) -> None:
    """Let a process say something, so many seconds after the submission."""
    line = LogLine(
        at=SUBMITTED + at,
        host="red",
        name=name,
        pid=1,
        level=level,
        source=source,
        text=text,
        trace=trace,
    )
    (root / FOLDER).mkdir(parents=True, exist_ok=True)
    FolderLogs(root / FOLDER).append(f"red-{name}-1.jsonl", line.to_bytes())
