"""The place of a page: the experiments and studies in a folder, by their names.

The folder may be a shared directory, the folder of an experiment, a grid or a search, or a folder
with several of these. We never join an ID to a path unless it is a bare name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from downpour.base.errors import SharedDirectoryError, SpecError, StoreError
from downpour.base.values import is_bare_name
from downpour.experiments.studies import Grid, Search
from downpour.files.records.journal import segments_among
from downpour.files.store.directory import names_in
from downpour.files.store.layout import RECORD_NAME

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
    def at(cls, root: Path) -> ResultsPlace:
        """Return the place at a path.

        Raises:
            SpecError: the folder does not exist.
        """
        try:
            names_in(root)
        except SharedDirectoryError as error:
            raise SpecError("FOLDER", str(root), error.reason) from None
        return cls(root.absolute())

    def experiments(self) -> list[FoundExperiment]:
        """Return the experiments without runs of studies, the most recently changed first.

        Raises:
            SharedDirectoryError: the folder cannot be listed.
        """
        found = []
        for folder in self._folders():
            changed_ns = _changed_ns(folder)
            if changed_ns is not None:
                found.append(FoundExperiment(folder.name, folder, changed_ns))
        return sorted(found, key=lambda one: (one.changed_ns, one.experiment), reverse=True)

    def studies(self) -> list[str]:
        """Return the names of grids and searches.

        Raises:
            SharedDirectoryError: the folder cannot be listed.
        """
        return sorted(folder.name for folder in self._folders() if _runs_in(folder) is not None)

    def runs_of(self, study: str) -> list[FoundExperiment]:
        """Return the ended runs of a study, by name; none if the study does not exist.

        Raises:
            SharedDirectoryError: the folder cannot be listed.
        """
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
    with suppress(OSError):
        return (folder / RECORD_NAME).stat().st_mtime_ns
    journal = segments_among(folder, _names(folder))
    with suppress(OSError):
        return max((path.stat().st_mtime_ns for path in journal[-1:]), default=None)
    return None
