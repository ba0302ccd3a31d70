"""The folder of a study's results; the only module that spells the names in it.

    grid.toml, tune.toml  the user's study, resolved; this file can run as well
    cells/ID/             spec.toml, record.jsonl and summary.json of one run of a grid
    trials/0001/          the same of one run of a search
    best.toml             the spec of a search's best run that has finished
    search.png, .svg      the figure of a search (`results.py`)
    run.lock              held by the process that runs the study
    log.txt               the output of a detached process
    request.json          what a manager elsewhere is training (`backends.py`)

A run's folder appears whole, by renaming, after the run has ended. So a run has ended exactly if
its folder exists. The study remembers nothing else, so an interruption costs at most one run. The
study's file may change as long as it still contains all finished runs. We refuse a folder that
holds anything else, and leave it unchanged.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from filelock import Timeout

from downpour.base.errors import SpecError
from downpour.core.spec import toml_fields
from downpour.experiments.studies.backends import REQUEST_NAME
from downpour.experiments.studies.run_folder import (
    RunSummary,
    check_run,
    mismatch,
    names_in,
    read_spec,
    read_summary,
    refusal,
    remove_unfinished,
    replace_file,
    write_run,
)
from downpour.experiments.studies.study import EndedRun, Run, Study
from downpour.files.store.layout import RECORD_NAME
from downpour.files.store.publish import explain
from downpour.host.paths import FolderLock

_LOCK = "run.lock"
_PID = "run.pid"
_LOOK_SECONDS = 0.2
"""How long to wait for the lock, which `holder` also takes for a moment, only to look."""
LOG_NAME = "log.txt"
LOCK_NAMES = (_LOCK, _PID, LOG_NAME)
"""Files that are not results: a folder that holds only these counts as empty."""


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold the lock of a study's folder, which must exist.

    When its holder ends, even if someone kills it, the operating system releases the lock. A file
    next to it has the holder's process ID.
    """
    lock = FolderLock(folder / _LOCK)
    try:
        lock.acquire(timeout=_LOOK_SECONDS, poll_interval=_LOOK_SECONDS / 10)
        (folder / _PID).write_text(str(os.getpid()))  # the lock itself does not name its holder
    except Timeout:
        raise SpecError("folder", str(folder), f"{_pid(folder)} is already running it") from None
    except OSError as error:
        lock.release()
        raise SpecError("folder", str(folder), explain(error)) from None
    try:
        yield
    finally:
        (folder / _PID).unlink(missing_ok=True)
        lock.release()


def holder(folder: Path) -> str | None:
    """Return the process that holds a study's lock, in words; None if none does."""
    if not (folder / _LOCK).exists():
        return None
    lock = FolderLock(folder / _LOCK)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return _pid(folder)
    except OSError:  # another user's folder, which this process can only read
        return _pid(folder) if (folder / _PID).exists() else None
    lock.release()
    return None


def _pid(folder: Path) -> str:
    try:
        return f"process {int((folder / _PID).read_text())}"
    except (OSError, ValueError):
        return "another process"


BEST_NAME = "best.toml"
StudyT = TypeVar("StudyT", bound=Study)
StudyT_co = TypeVar("StudyT_co", bound=Study, covariant=True)


@dataclass(frozen=True, slots=True)
class StudyFolder(Generic[StudyT_co]):
    """The folder of one study's results."""

    path: Path
    study: StudyT_co

    @property
    def study_file(self) -> Path:
        """The study's own file; it exists after `begin`."""
        return self.path / self.study.file_name

    @property
    def request(self) -> Path:
        """The file with the request of the run that a manager elsewhere is training."""
        return self.path / REQUEST_NAME

    @property
    def best(self) -> Path:
        """The file of the best run's spec; it exists once a run has finished."""
        return self.path / BEST_NAME

    def check(self) -> None:
        """Check that the folder can take this study's results; change nothing.

        It can if it is missing or empty, or if all its finished runs belong to this study. The
        check reads and verifies every file of each run.
        """
        try:
            names = {path.name for path in self.path.iterdir() if not path.name.startswith(".")}
        except FileNotFoundError:
            return
        except OSError as error:
            raise refusal(self.path, explain(error)) from None
        if not names - set(LOCK_NAMES):
            return
        if self._holds_another():
            raise refusal(self.path, f"holds another {self.study.kind}; choose another folder")
        for ended in self.ended():
            check_run(self._place(ended.run.name))

    def make(self) -> None:
        """Make the folder if it is missing."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise refusal(self.path, explain(error)) from None

    def begin(self) -> None:
        """Write the study's file and remove incomplete runs; the caller holds the lock."""
        try:
            # The file comes first, because `check` refuses a folder with other files and without
            # it.
            replace_file(self.study_file, self.study.to_toml().encode())
            self._runs.mkdir(exist_ok=True)
            remove_unfinished(self._runs)
            for name in self._not_in_study():  # all of these failed: `check` refuses others
                shutil.rmtree(self._place(name))
        except OSError as error:
            raise refusal(self.path, explain(error)) from None

    def keep(self, run: Run, record: bytes, summary: RunSummary) -> None:
        """Write the files of an ended run; its folder appears whole or not at all."""
        write_run(self._place(run.name), run.spec, record, summary)

    def write_best(self, run: Run) -> None:
        """Write the spec of the best run."""
        try:
            replace_file(self.best, run.spec.to_toml().encode())
        except OSError as error:
            raise refusal(self.path, explain(error)) from None

    def ended(self) -> list[EndedRun]:
        """Return the ended runs of this study, with their outcomes."""
        return [self._ended(name) for name in self._names() if self.study.has_run(name)]

    def records(self) -> list[Path]:
        """Return the paths of the records of ended runs, each in a folder of its run's name."""
        return [self.record(name) for name in self._names() if self.study.has_run(name)]

    def record(self, name: str) -> Path:
        """Return the path of a run's record; it exists once the run has ended."""
        return self._place(name) / RECORD_NAME

    def _ended(self, name: str) -> EndedRun:
        """Read a run's files, and check that they belong to the run in the folder's name."""
        place = self._place(name)
        spec, summary = read_spec(place), read_summary(place)
        run = self.study.run_of(name, spec)
        if run is None:
            raise mismatch(place)
        return EndedRun(run, summary)

    def _holds_another(self) -> bool:
        """Whether the study here has another name, or finished runs that don't belong here."""
        former = read_study(self.path, type(self.study))
        if former.name != self.study.name:
            return True
        if self._names() and not self.study.keeps_runs_of(former):
            return True
        return any(read_summary(self._place(name)).is_finished for name in self._not_in_study())

    def _not_in_study(self) -> list[str]:
        """Return the names of the runs here that the study does not contain."""
        return [name for name in self._names() if not self.study.has_run(name)]

    def _names(self) -> list[str]:
        return names_in(self._runs)

    def _place(self, name: str) -> Path:
        return self._runs / name

    @property
    def _runs(self) -> Path:
        return self.path / self.study.runs_folder


def read_folder(path: Path, kind: type[StudyT]) -> StudyFolder[StudyT]:
    """Open a folder with the study in its own file."""
    return StudyFolder(path, read_study(path, kind))


def read_study(path: Path, kind: type[StudyT]) -> StudyT:
    """Read the study in a folder's own file."""
    name = kind.file_name
    try:
        return kind.make(toml_fields((path / name).read_text("utf-8")))
    except FileNotFoundError:
        why = f"is not empty, and has no {name}" if path.is_dir() else "no such folder"
        raise refusal(path, why) from None
    except (OSError, ValueError) as error:
        raise refusal(path, f"{name} cannot be read: {error}") from None
    except SpecError as error:
        raise refusal(path, f"{name} is damaged: {error}") from None
