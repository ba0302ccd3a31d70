"""The folder of an ended run: spec.toml, record.jsonl and summary.json.

It appears whole, by renaming, so if a run's folder exists, the run has ended. `study_folder.py`
decides to which study a run belongs.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import xxhash

from downpour.base.errors import FileCorrupt, FileMissing, SpecError, StoreError
from downpour.core.spec import ResolvedSpec
from downpour.experiments.reading.study_result import RunResult, read_run
from downpour.experiments.studies.summary import RunSummary
from downpour.files.store import SPEC_NAME
from downpour.files.store.layout import RECORD_NAME
from downpour.files.store.os_errors import explain
from downpour.files.store.publish import sync_directory

SUMMARY_NAME = "summary.json"
_UNFINISHED = ".new-"
_ENDS = {
    "finished": ("finished",),
    "failed": ("failed",),
    "cancelled": ("cancelled", "finished", "failed"),
}
"""For each state of a summary, how the record may end.

A search may prune a run that has meanwhile reached its end.
"""


def refusal(path: Path, reason: str) -> SpecError:
    """Return the error for an unusable folder of results."""
    return SpecError("folder", str(path), reason)


def write_run(place: Path, spec: ResolvedSpec, record: bytes, summary: RunSummary) -> None:
    """Write the files of a run, replacing the files of an earlier try.

    Raises:
        SpecError: the folder cannot be written.
    """
    new = place.with_name(f"{_UNFINISHED}{place.name}")
    text = spec.to_toml().encode()
    sealed = replace(summary, checksum=_checksum(record, text))
    # We write contents to disk before the rename. Otherwise, after a power failure, the final
    # folder could hold empty files, and would count as a run.
    try:
        new.mkdir()
        _write(new / RECORD_NAME, record)
        _write(new / SPEC_NAME, text)
        _write(new / SUMMARY_NAME, sealed.to_json().encode())
        sync_directory(new)
        if place.exists():  # the run failed before, and we repeated it
            shutil.rmtree(place)
        new.rename(place)
        sync_directory(place.parent)
    except OSError as error:
        raise refusal(place.parent.parent, explain(error)) from None


def remove_unfinished(folder: Path) -> None:
    """Remove the folders of runs whose writing was interrupted.

    Raises:
        OSError: a folder cannot be removed.
    """
    for leftover in folder.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(leftover)


def names_in(folder: Path) -> list[str]:
    """Return the names of the runs in a folder, which need not exist."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - the names alone are wanted
    except FileNotFoundError:
        return []
    except OSError as error:
        raise refusal(folder, explain(error)) from None
    return sorted(name for name in names if not name.startswith("."))


def read_summary(place: Path) -> RunSummary:
    """Read the outcome of a run.

    Raises:
        SpecError: the summary cannot be read, or is of a run that has not ended.
    """
    try:
        summary = RunSummary.from_json((place / SUMMARY_NAME).read_bytes(), SUMMARY_NAME)
    except (OSError, StoreError) as error:
        raise _unreadable(place, SUMMARY_NAME, error) from None
    if summary.state not in _ENDS:
        raise refusal(place, f"has not ended: {summary.state}")
    return summary


def read_spec(place: Path) -> ResolvedSpec:
    """Read the spec of a run.

    Raises:
        SpecError: the spec cannot be read.
    """
    try:
        return ResolvedSpec.from_toml((place / SPEC_NAME).read_text("utf-8"))
    except (OSError, ValueError, SpecError) as error:
        raise _unreadable(place, SPEC_NAME, error) from None


def check_run(place: Path, workers: int | None = None) -> RunResult:
    """Read all of a run's files, and return its record for a report.

    Raises:
        SpecError: a file cannot be read or was altered, or the files are not of the same run.
    """
    summary = read_summary(place)
    try:
        run = read_run(place, workers=workers)
        checksum = _checksum((place / RECORD_NAME).read_bytes(), (place / SPEC_NAME).read_bytes())
    except (OSError, ValueError, StoreError) as error:
        raise _unreadable(place, RECORD_NAME, error) from None
    if run.result.experiment != summary.experiment:
        raise mismatch(place)
    # Earlier versions wrote no checksum, but at least a truncated record ends differently.
    is_whole = run.result.state in _ENDS[summary.state]
    if summary.checksum not in (None, checksum) or not is_whole:
        raise refusal(place, f"{RECORD_NAME} or {SPEC_NAME} has changed since the run")
    return run


def mismatch(place: Path) -> SpecError:
    """Return the error for a folder that holds another run than its name says."""
    return refusal(place, "holds a different run than its name says")


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file atomically: a reader sees the old content or the new one.

    Raises:
        OSError: the file cannot be written.
    """
    new = path.with_name(f"{_UNFINISHED}{path.name}")
    _write(new, content)
    new.replace(path)
    sync_directory(path.parent)


def _unreadable(place: Path, name: str, error: Exception) -> SpecError:
    match error:
        case OSError(strerror=str(reason)):
            pass
        case FileMissing():
            reason = "No such file"
        case FileCorrupt():
            reason = error.reason
        case _:
            reason = str(error)
    return refusal(place, f"{name} cannot be read: {reason}")


def _checksum(record: bytes, spec: bytes) -> str:
    digest = xxhash.xxh3_128(record)
    digest.update(spec)
    return digest.hexdigest()


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
