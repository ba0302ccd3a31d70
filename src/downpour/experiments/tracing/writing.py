"""Writes a trace to a file, or as lines to standard output."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from downpour.base.errors import SpecError
from downpour.experiments.tracing.events import known
from downpour.experiments.tracing.trace import trace_events
from downpour.files.records.record_lines import RecordLine, SubmittedLine
from downpour.files.store.os_errors import explain

TRACE_NAME = "trace.json"
_HEAD = '{"displayTimeUnit": "ms", "otherData": {"made by": "downpour trace"'
"""How every trace begins; we never replace a file that begins otherwise."""


def trace_lines(record: Sequence[tuple[float, RecordLine]]) -> Iterator[str]:
    """Yield the lines of a trace, one per event, with their ends; together they are a JSON object.

    The memory for this does not grow with the text.
    """
    of = json.dumps(_about(record), allow_nan=False)[1:]
    yield f'{_HEAD}, {of}, "traceEvents": [\n'
    before = ""
    for event in trace_events(record):
        yield f"{before}{event.to_json()}"
        before = ",\n"
    yield "\n]}\n"


def _about(record: Sequence[tuple[float, RecordLine]]) -> dict[str, object]:
    for _, line in record:
        if isinstance(line, SubmittedLine):
            own = {"experiment": line.experiment, "name": line.name, "version": line.version}
            return known({**own, "shards": line.shards})
    return {"experiment": ""}


def write_trace(record: Sequence[tuple[float, RecordLine]], path: Path) -> None:
    """Write a trace, whole or not at all, replacing one that an earlier call wrote.

    Raises:
        SpecError: the file is not a trace, or cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not _is_trace(path):
            accepted = "exists and is not a trace from downpour; choose another file"
            raise SpecError("to", str(path), accepted)
        _replace(path, trace_lines(record))
    except OSError as error:
        raise SpecError("to", str(path), f"cannot be written: {explain(error)}") from None


def _is_trace(path: Path) -> bool:
    if not path.is_file():  # opening a FIFO would block
        return False
    with path.open("rb") as file:
        return file.read(len(_HEAD)) == _HEAD.encode()


def _replace(path: Path, lines: Iterator[str]) -> None:
    # A short name, because the given one may already be as long as the file system allows.
    unfinished = path.with_name(f".tmp-{secrets.token_hex(8)}")
    try:
        with unfinished.open("x", encoding="ascii") as file:
            file.writelines(lines)
        unfinished.replace(path)
    finally:
        with suppress(OSError):
            unfinished.unlink()
