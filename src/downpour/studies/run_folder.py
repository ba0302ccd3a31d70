"""The folder of a run that has ended: spec.toml, record.jsonl and summary.json.

It appears whole, by renaming, so what is there was run to its end. Which runs belong where, others
know.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import xxhash

from downpour.errors import FileCorrupt, FileMissing, SpecError, StoreError
from downpour.reports.study import Run, read_run
from downpour.runtime.record import RECORD_NAME
from downpour.spec import Spec
from downpour.store import SPEC_NAME
from downpour.store.publish import sync_directory
from downpour.store.trouble import explain
from downpour.studies.summary import Summary

SUMMARY_NAME = "summary.json"
_UNFINISHED = ".new-"
_ENDS = {
    "finished": ("finished",),
    "failed": ("failed",),
    "cancelled": ("cancelled", "finished", "failed"),
}
"""How a record may end of what a summary says; a search may end a trial that has run through."""


def refusal(path: Path, reason: str) -> SpecError:
    """Say why a folder of results cannot be used."""
    return SpecError("folder", str(path), reason)


def make_folder(path: Path) -> None:
    """Make a folder of results where it is missing.

    Raises:
        SpecError: it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refusal(path, explain(error)) from None


def keep(place: Path, spec: Spec, record: bytes, summary: Summary) -> None:
    """Keep what a run came to; an earlier attempt at the same place is replaced.

    Raises:
        SpecError: the folder cannot be written.
    """
    new = place.with_name(f"{_UNFINISHED}{place.name}")
    told = spec.to_toml().encode()
    sealed = replace(summary, checksum=_checksum(record, told))
    try:
        new.mkdir()
        _write(new / RECORD_NAME, record)
        _write(new / SPEC_NAME, told)
        _write(new / SUMMARY_NAME, sealed.to_json().encode())
        sync_directory(new)
        if place.exists():
            shutil.rmtree(place)
        new.rename(place)
        sync_directory(place.parent)
    except OSError as error:
        raise refusal(place.parent.parent, explain(error)) from None


def remove_unfinished(folder: Path) -> None:
    """Remove what was cut off in the middle of keeping it.

    Raises:
        OSError: it cannot be removed.
    """
    for leftover in folder.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(leftover)


def kept_in(folder: Path) -> list[str]:
    """Name the runs that are kept in a folder, which need not exist."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - the names alone are wanted
    except FileNotFoundError:
        return []
    except OSError as error:
        raise refusal(folder, explain(error)) from None
    return sorted(name for name in names if not name.startswith("."))


def read_summary(place: Path) -> Summary:
    """Read what a run came to.

    Raises:
        SpecError: it cannot be read.
    """
    try:
        return Summary.from_json((place / SUMMARY_NAME).read_bytes(), SUMMARY_NAME)
    except (OSError, StoreError) as error:
        raise _unreadable(place, SUMMARY_NAME, error) from None


def read_spec_kept(place: Path) -> Spec:
    """Read what was run.

    Raises:
        SpecError: it cannot be read.
    """
    try:
        return Spec.from_toml((place / SPEC_NAME).read_text("utf-8"))
    except (OSError, ValueError, SpecError) as error:
        raise _unreadable(place, SPEC_NAME, error) from None


def read_kept(place: Path, workers: int | None) -> tuple[Spec, Run]:
    """Read all of a run's files.

    Raises:
        SpecError: one cannot be read or was altered, or they do not tell of the same run.
    """
    spec, summary = read_spec_kept(place), read_summary(place)
    try:
        run = read_run(place, workers=workers)
        checksum = _checksum((place / RECORD_NAME).read_bytes(), (place / SPEC_NAME).read_bytes())
    except (OSError, ValueError, StoreError) as error:
        raise _unreadable(place, RECORD_NAME, error) from None
    if run.result.experiment != summary.experiment:
        raise stranger(place)
    # Earlier versions wrote no checksum; what is cut off has at least another end.
    if summary.checksum not in (None, checksum) or run.result.state not in _ENDS.get(
        summary.state, ()
    ):
        raise refusal(place, f"{RECORD_NAME} or {SPEC_NAME} is not what was written")
    return spec, run


def stranger(place: Path) -> SpecError:
    """Refuse files that tell of another run than the one whose place they have."""
    return refusal(place, "tells of something else than its name says")


def replace_file(path: Path, content: bytes) -> None:
    """Write a file that is whole at any moment: as before, or as now.

    Raises:
        OSError: it cannot be written.
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
