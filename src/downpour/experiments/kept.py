"""The folder of a run that has ended: spec.toml, record.jsonl and summary.json.

It appears whole, by renaming, so what is there was run to its end. Which runs belong where, others
know.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from downpour.errors import SpecError, StoreError
from downpour.experiments.summary import Summary
from downpour.reports.study import Run, read_run
from downpour.runtime.record import RECORD_NAME
from downpour.spec import Spec
from downpour.store import SPEC_NAME
from downpour.store.publish import explain, sync_directory

SUMMARY_NAME = "summary.json"
_UNFINISHED = ".new-"


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
    try:
        new.mkdir()
        _write(new / RECORD_NAME, record)
        _write(new / SPEC_NAME, spec.to_toml().encode())
        _write(new / SUMMARY_NAME, summary.to_json().encode())
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
        raise refusal(place, f"cannot be read: {error}") from None


def read_spec_kept(place: Path) -> Spec:
    """Read what was run.

    Raises:
        SpecError: it cannot be read.
    """
    try:
        return Spec.from_toml((place / SPEC_NAME).read_text("utf-8"))
    except (OSError, ValueError, SpecError) as error:
        raise refusal(place, f"cannot be read: {error}") from None


def read_kept(place: Path, workers: int | None) -> tuple[Spec, Run]:
    """Read all of a run's files.

    Raises:
        SpecError: one cannot be read, or they do not tell of the same run.
    """
    spec = read_spec_kept(place)
    try:
        run = read_run(place, workers=workers)
    except (OSError, ValueError, StoreError) as error:
        raise refusal(place, f"cannot be read: {error}") from None
    if run.result.experiment != read_summary(place).experiment:
        raise stranger(place)
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


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
