"""The folder of a study's results; the only module that spells the names in it.

    grid.toml, tune.toml  the user's study, resolved; this file can run as well
    cells/ID/             spec.toml, record.jsonl and summary.json of one run of a grid
    trials/0001/          the same of one run of a search
    best.toml             the spec of a search's best run that has finished
    search.png, .svg      the figure of a search (`search.py`)
    run.lock, run.pid     held by the process that runs the study, and its process ID
    log.txt               the output of a detached process
    request.json          what a manager elsewhere is training (`running.py`)

A run's folder appears whole, by renaming, after the run has ended. So a run has ended exactly if
its folder exists. The study remembers nothing else, so an interruption costs at most one run. The
study's file may change as long as it still contains all finished runs. We refuse a folder that
holds anything else, and leave it unchanged.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import xxhash
from filelock import Timeout

from downpour.base.errors import (
    FileCorrupt,
    FileMissing,
    SpecError,
    StoreError,
    listed,
    shortened,
)
from downpour.core.spec import ResolvedSpec, toml_fields
from downpour.experiments.studies.study import (
    EndedRun,
    Run,
    RunSummary,
    StudyProgress,
    StudySpec,
)
from downpour.files.store.layout import RECORD_NAME, SPEC_NAME
from downpour.files.store.publish import explain, sync_directory
from downpour.host.paths import FolderLock, is_held
from downpour.record.study_result import RunResult, read_run

BEST_NAME = "best.toml"
"""It exists once a run has finished."""
LOG_NAME = "log.txt"
REQUEST_NAME = "request.json"
SUMMARY_NAME = "summary.json"
_LOCK = "run.lock"
_PID = "run.pid"
_NO_RESULTS = {_LOCK, _PID, LOG_NAME}
"""A folder that holds only these counts as empty."""
_UNFINISHED = ".new-"
_VALUE_LETTERS_MAX = 40


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold the lock of a study's folder; this makes the folder if it is missing.

    When its holder ends, even if someone kills it, the operating system releases the lock.
    """
    lock = FolderLock(folder / _LOCK)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire_soon()
        (folder / _PID).write_text(str(os.getpid()))  # the lock itself does not name its holder
    except Timeout:
        raise refusal(folder, f"{_pid(folder)} is already running it") from None
    except OSError as error:
        lock.release()
        raise refusal(folder, explain(error)) from None
    try:
        yield
    finally:
        (folder / _PID).unlink(missing_ok=True)
        lock.release()


def holder(folder: Path) -> str | None:
    """Return the process that holds a study's lock, in words; None if none does."""
    return _pid(folder) if is_held(folder / _LOCK, folder / _PID) else None


def _pid(folder: Path) -> str:
    try:
        return f"process {int((folder / _PID).read_text())}"
    except (OSError, ValueError):
        return "another process"


def refusal(path: Path, reason: str) -> SpecError:
    """Return the error for an unusable folder of results."""
    return SpecError("folder", str(path), reason)


@contextlib.contextmanager
def _refused_in(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise refusal(path, explain(error)) from None


def _names_in(folder: Path) -> list[str]:
    """Return the visible names in a folder; none if it is missing."""
    with _refused_in(folder):
        try:
            names = os.listdir(folder)  # noqa: PTH208 - the names alone are wanted
        except FileNotFoundError:
            return []
    return sorted(name for name in names if not name.startswith("."))


StudyT = TypeVar("StudyT", bound=StudySpec)
StudyT_co = TypeVar("StudyT_co", bound=StudySpec, covariant=True)


@dataclass(frozen=True, slots=True)
class StudyFolder(Generic[StudyT_co]):
    """The folder of one study's results."""

    path: Path
    study: StudyT_co

    @property
    def study_file(self) -> Path:
        """The study's own file; it exists after `begin`."""
        return self.path / self.study.file_name

    def check(self) -> None:
        """Check that the folder can take this study's results; change nothing.

        It can if it is missing or empty, or if all its finished runs belong to this study. The
        check reads and verifies every file of each run.
        """
        if not {*_names_in(self.path)} - _NO_RESULTS:
            return
        former = read_folder(self.path, type(self.study)).study
        if self._is_another(former):
            old, new = (toml_fields(study.to_toml()) for study in (former, self.study))
            what = listed([f"another {self.study.kind}", *dict.fromkeys(_changes(old, new))])
            raise refusal(self.path, f"holds {what}; choose another folder with --out")
        for ended in self.ended():
            check_run(self._place(ended.run.name))

    def begin(self) -> None:
        """Write the study's file and remove incomplete runs; the caller holds the lock."""
        with _refused_in(self.path):
            # The file comes first, because `check` refuses a folder with other files and without
            # it.
            replace_file(self.study_file, self.study.to_toml().encode())
            self._runs.mkdir(exist_ok=True)
            for interrupted in self._runs.glob(f"{_UNFINISHED}*"):
                shutil.rmtree(interrupted)
            for name in self._not_in_study():  # all of these failed: `check` refuses others
                shutil.rmtree(self._place(name))

    def keep(self, run: Run, record: bytes, summary: RunSummary) -> None:
        """Write the files of an ended run, replacing those of an earlier try.

        Its folder appears whole or not at all.
        """
        place, spec = self._place(run.name), run.spec.to_toml().encode()
        new = place.with_name(f"{_UNFINISHED}{place.name}")
        sealed = replace(summary, checksum=_checksum(record, spec))
        # We write contents to disk before the rename. Otherwise, after a power failure, the final
        # folder could hold empty files, and would count as a run.
        with _refused_in(self.path):
            new.mkdir()
            _write(new / RECORD_NAME, record)
            _write(new / SPEC_NAME, spec)
            _write(new / SUMMARY_NAME, sealed.to_json().encode())
            sync_directory(new)
            if place.exists():  # the run failed before, and we repeated it
                shutil.rmtree(place)
            new.rename(place)
            sync_directory(place.parent)

    def write(self, name: str, content: bytes) -> None:
        """Write a file beside the study's own, or replace it."""
        with _refused_in(self.path):
            replace_file(self.path / name, content)

    def ended(self) -> list[EndedRun]:
        """Return the ended runs, with their outcomes; fail if a folder's name isn't its run's."""
        ended = []
        for place in (record.parent for record in self.records()):
            spec, summary = read_spec(place), read_summary(place)
            run = self.study.run_of(place.name, spec)
            if run is None:
                raise _mismatch(place)
            ended.append(EndedRun(run, summary))
        return ended

    def records(self) -> list[Path]:
        """Return the paths of the records of ended runs, each in a folder of its run's name."""
        return [self.record(name) for name in self._names() if self.study.has_run(name)]

    def record(self, name: str) -> Path:
        """Return the path of a run's record; it exists once the run has ended."""
        return self._place(name) / RECORD_NAME

    def _is_another(self, former: Any) -> bool:
        """Whether the study here has another name, or finished runs that don't belong here."""
        if former.name != self.study.name:
            return True
        if self._names() and not self.study.keeps_runs_of(former):
            return True
        return any(read_summary(self._place(name)).is_finished for name in self._not_in_study())

    def _not_in_study(self) -> list[str]:
        return [name for name in self._names() if not self.study.has_run(name)]

    def _names(self) -> list[str]:
        return _names_in(self._runs)

    def _place(self, name: str) -> Path:
        return self._runs / name

    @property
    def _runs(self) -> Path:
        return self.path / self.study.runs_folder


def _changes(former: Any, now: Any, field: str = "") -> Iterator[str]:
    """Yield each field of a study's file that has changed, with its former value."""
    match former, now:
        case dict(), dict():
            for name in former | now:
                named = f"{field}.{name}".lstrip(".")
                yield from _changes(former.get(name), now.get(name), named)
        case [dict(), *_], [dict(), *_] if len(former) == len(now):
            for one, other in zip(former, now, strict=True):
                yield from _changes(one, other)
        case _ if former != now:
            yield f"{field} was {shortened(str(former), _VALUE_LETTERS_MAX)}"


def read_folder(path: Path, kind: type[StudyT]) -> StudyFolder[StudyT]:
    """Open a folder with the study in its own file."""
    name = kind.file_name
    try:
        return StudyFolder(path, kind.from_toml((path / name).read_text("utf-8")))
    except FileNotFoundError:
        why = f"is not empty, and has no {name}" if path.is_dir() else "no such folder"
        raise refusal(path, why) from None
    except (OSError, ValueError) as error:
        raise refusal(path, f"{name} cannot be read: {error}") from None
    except SpecError as error:
        raise refusal(path, f"{name} is damaged: {error}") from None


def read_summary(place: Path) -> RunSummary:
    """Read the outcome of the run in a folder."""
    with _reading(place, SUMMARY_NAME):
        summary = RunSummary.from_json((place / SUMMARY_NAME).read_bytes(), SUMMARY_NAME)
    if not summary.state.ended:
        raise refusal(place, f"has not ended: {summary.state}")
    return summary


def read_spec(place: Path) -> ResolvedSpec:
    """Read the spec of the run in a folder."""
    with _reading(place, SPEC_NAME):
        return ResolvedSpec.from_toml((place / SPEC_NAME).read_text("utf-8"))


def check_run(place: Path, workers: int | None = None) -> RunResult:
    """Read all of a run's files, and return its record for a report."""
    summary = read_summary(place)
    with _reading(place, RECORD_NAME):
        run = read_run(place, workers=workers)
        checksum = _checksum((place / RECORD_NAME).read_bytes(), (place / SPEC_NAME).read_bytes())
    if run.result.experiment != summary.experiment:
        raise _mismatch(place)
    if summary.checksum != checksum:
        raise refusal(place, f"{RECORD_NAME} or {SPEC_NAME} has changed since the run")
    return run


def _mismatch(place: Path) -> SpecError:
    return refusal(place, "holds a different run than its name says")


@contextlib.contextmanager
def _reading(place: Path, name: str) -> Iterator[None]:
    """Refuse a folder with a run whose file of this name cannot be read."""
    try:
        yield
    except (OSError, ValueError, StoreError, SpecError) as error:
        reason = error.reason if isinstance(error, FileCorrupt) else str(error)
        reason = "No such file" if isinstance(error, FileMissing) else reason
        reason = getattr(error, "strerror", None) or reason
        raise refusal(place, f"{name} cannot be read: {reason}") from None


def _checksum(record: bytes, spec: bytes) -> str:
    digest = xxhash.xxh3_128(record)
    digest.update(spec)
    return digest.hexdigest()


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file atomically: a reader sees the old content or the new one."""
    new = path.with_name(f"{_UNFINISHED}{path.name}")
    _write(new, content)
    new.replace(path)
    sync_directory(path.parent)


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def status_of(folder: StudyFolder[StudySpec]) -> StudyProgress:
    """Read how far a study is, and which process runs it."""
    progress = folder.study.plan(folder.ended()).progress
    return replace(progress, running=holder(folder.path))
