"""The place of a page: the experiments and studies in a folder, by their names.

The folder may be a shared directory, the folder of an experiment, a grid or a search, or a folder
with several of these. We never join an ID to a path unless it is a bare name.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any, Self

from downpour.base.errors import DownpourError, SharedDirectoryError, SpecError, StoreError
from downpour.base.values import is_bare_name
from downpour.experiments.studies import Grid, Search
from downpour.experiments.studies.folder import read_spec, read_summary
from downpour.experiments.studies.study import RunSummary
from downpour.files.store.directory import names_in, open_regular
from downpour.files.store.layout import RECORD_NAME
from downpour.files.store.publish import reading
from downpour.files.store.shared_directory import seen_location
from downpour.host.paths import is_object_store, path_of
from downpour.record.journal import segments_among
from downpour.record.mirror import MirrorCopy
from downpour.record.record import is_exported
from downpour.show.dashboard.model import RecordTables
from downpour.show.dashboard.page_data import NOT_A_LINE, parsed_line

_STUDIES = {kind.file_name: kind.runs_folder for kind in (Grid, Search)}
_OF_STUDY = ":"
"""Stands between a study's name and a run's name in the ID of a run."""


@dataclass(frozen=True, slots=True)
class FoundExperiment:
    """An experiment in a place, and its record's last change, in nanoseconds of unix time."""

    experiment: str
    folder: Path
    changed_ns: int


@dataclass(frozen=True, slots=True)
class ResultsPlace:
    """A folder with experiments."""

    root: Path

    @classmethod
    def at(cls, root: Path) -> Self:
        """Return the place at a path."""
        try:
            names_in(root)
        except SharedDirectoryError as error:
            raise SpecError("FOLDER", str(root), error.reason) from None
        return cls(root.absolute())

    def experiments(self) -> list[FoundExperiment]:
        """Return the experiments without runs of studies, the most recently changed first."""
        found = []
        for folder in self._folders():
            changed_ns = _changed_ns(folder)
            if changed_ns is not None:
                found.append(FoundExperiment(folder.name, folder, changed_ns))
        return sorted(found, key=lambda one: (one.changed_ns, one.experiment), reverse=True)

    def studies(self) -> list[str]:
        """Return the names of grids and searches."""
        return sorted(folder.name for folder in self._folders() if _runs_in(folder) is not None)

    def runs_of(self, study: str) -> list[FoundExperiment]:
        """Return the ended runs of a study, by name; none if the study does not exist."""
        runs = self._runs(study)
        if runs is None or not runs.is_dir():
            return []
        found = [(name, _changed_ns(runs / name)) for name in sorted(names_in(runs))]
        return [
            FoundExperiment(f"{study}{_OF_STUDY}{name}", runs / name, changed_ns)
            for name, changed_ns in found
            if changed_ns is not None and is_bare_name(name)
        ]

    def folder_of(self, experiment: str) -> Path | None:
        """Return the folder of an experiment or of a study's run; None if it does not exist."""
        for folder in self._named(experiment):
            if _changed_ns(folder) is not None:
                return folder
        study, _, run = experiment.rpartition(_OF_STUDY)
        runs = self._runs(study)
        if runs is not None and is_bare_name(run) and _changed_ns(runs / run) is not None:
            return runs / run
        return None

    def _runs(self, study: str) -> Path | None:
        found = (_runs_in(folder) for folder in self._named(study))
        return next((runs for runs in found if runs is not None), None)

    def _named(self, name: str) -> Iterator[Path]:
        """Yield the folders in which something of this name may be."""
        if name == self.root.name:
            yield self.root
        if is_bare_name(name):
            yield from (base / name for base in self._bases())

    def _folders(self) -> Iterator[Path]:
        yield self.root
        for base in self._bases():
            # If the second base does not exist, the root is not a shared directory.
            names: Sequence[str] = names_in(base) if base == self.root else _names(base)
            yield from (base / name for name in names if is_bare_name(name))

    def _bases(self) -> tuple[Path, ...]:
        return self.root, self.root / "experiments"


def _names(folder: Path) -> list[str]:
    try:
        return names_in(folder)
    except StoreError:
        return []


def _runs_in(folder: Path) -> Path | None:
    """Return the folder of a study's runs; None if the folder is not a study's."""
    for file, runs in _STUDIES.items():
        if (folder / file).is_file():
            return folder / runs
    return None


def _changed_ns(folder: Path) -> int | None:
    """Return when the record in a folder last changed; None if it has no record."""
    changed = []
    for path in (folder / RECORD_NAME, *segments_among(folder, _names(folder))[-1:]):
        with suppress(OSError):
            changed.append(path.stat().st_mtime_ns)
    return max(changed, default=None)


def study_table(place: ResultsPlace, name: str) -> dict[str, Any] | None:
    """Return the ended runs of a study as a table; None if the study does not exist.

    Its columns are the spec's fields in which the runs differ, and the outcome of each run. We
    leave out runs whose files cannot be read.
    """
    if name not in place.studies():
        return None
    runs: list[tuple[str, dict[str, Any], RunSummary]] = []
    for found in place.runs_of(name):
        with suppress(DownpourError):
            summary = read_summary(found.folder)
            fields = read_spec(found.folder).model_dump(mode="json")
            runs.append((found.experiment, fields, summary))
    varied = _varied([fields for _, fields, _ in runs])
    rows = [
        [
            experiment.rpartition(":")[2],
            *(_cell(fields.get(field)) for field in varied),
            str(summary.state),
            len(summary.epochs),
            summary.in_words or None,
            round(summary.total_seconds, 1),
        ]
        for experiment, fields, summary in runs
    ]
    columns = ["run", *varied, "state", "epochs", "result", "seconds"]
    return {"name": name, "columns": columns, "rows": rows, "runs": [one for one, _, _ in runs]}


def _varied(specs: list[dict[str, Any]]) -> list[str]:
    """Return the fields in which specs differ; names and code are no settings."""
    fields = dict.fromkeys(field for spec in specs for field in spec)
    return [
        field
        for field in fields
        if field not in {"name", "code"} and any(s.get(field) != specs[0].get(field) for s in specs)
    ]


def _cell(value: Any) -> str | int | float | bool | None:
    return value if value is None or isinstance(value, str | int | float) else str(value)


_END_BYTES = 128 * 1024
"""At the end of a record: this holds the last version, the last evaluation and the ending."""


def ends_of(folder: Path) -> RecordTables | None:
    """Fold the beginning and the end of an exported record; None if it does not exist."""
    path = folder / RECORD_NAME
    if not is_exported(path):
        return None
    with reading(path.parent, path.name), open(open_regular(path), "rb") as file:
        first = [file.readline()]
        size = os.fstat(file.fileno()).st_size
        start = max(file.tell(), size - _END_BYTES)
        file.seek(start)
        rest = file.read().split(b"\n")
        # If the piece begins in the middle of a line, its first part is no line.
        last = rest[1:] if start > len(first[0]) else rest
    model = RecordTables()
    for text in first + last:
        if (fields := parsed_line(text)) is not NOT_A_LINE:
            with suppress(ValueError):  # a damaged line costs the list nothing
                model.take(fields)
    return model


LOOK_SECONDS = 3.0
"""The time between two looks into a bucket, because each look is a request that costs money."""
Refresh = Callable[[str], None]
"""Called in a thread, with the ID of an experiment, or with "" for all experiments."""


@contextmanager
def opened(location: str) -> Iterator[tuple[ResultsPlace, Refresh]]:
    """Yield the place at a path or URL, and the function that updates it."""
    if not is_object_store(location):
        yield ResultsPlace.at(path_of("FOLDER", location)), lambda _: None
        return
    shared = seen_location(location)
    with TemporaryDirectory(prefix="downpour-") as folder:
        copy, lock = MirrorCopy(shared, Path(folder)), Lock()
        looked: dict[str, float] = {}

        def refresh(experiment: str) -> None:
            with lock:
                now = time.monotonic()
                if now - looked.get(experiment, -LOOK_SECONDS) >= LOOK_SECONDS:
                    copy.fetch(experiment)
                    looked[experiment] = now

        refresh("")
        yield ResultsPlace.at(Path(folder)), refresh
