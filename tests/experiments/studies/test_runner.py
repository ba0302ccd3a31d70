"""What holds for every study: what has ended is never run again, and one process runs it."""

import os
from collections.abc import Callable
from pathlib import Path
from threading import Timer

import pytest
from filelock import FileLock

from downpour.base.errors import ExperimentFailed, SpecError
from downpour.experiments.studies import Run, StudyFolder, StudySpec, run_study
from downpour.experiments.studies.folder import held, holder
from tests.experiments.studies.conftest import (
    FakeBackend,
    Interruption,
    Silence,
    grid_folder,
    search_folder,
)

FolderIn = Callable[..., StudyFolder[StudySpec]]


@pytest.fixture(params=[grid_folder, search_folder], ids=["grid", "search"])
def folder_in(request: pytest.FixtureRequest) -> FolderIn:
    """Makes the folder of a small study, of each kind."""
    chosen: FolderIn = request.param
    return chosen


def test_what_has_ended_is_not_run_again(folder_in: FolderIn, tmp_path: Path) -> None:
    """Cut off three times: each run is trained once, and a study that is done starts nothing."""
    folder = folder_in(tmp_path)
    backend = FakeBackend(interrupted_at={1, 4, 5})
    for _ in range(3):
        with pytest.raises(Interruption):
            run_study(folder, backend, Silence())
        assert len(folder.ended()) == len(backend.trained)
    progress = run_study(folder, backend, Silence())
    assert (progress.left, progress.is_successful) == (0, True)
    assert sorted(backend.names) == sorted(one.run.name for one in folder.ended())
    again = FakeBackend()
    assert run_study(folder, again, Silence()) == progress
    assert (again.calls, again.starts) == (0, 0)


def test_the_first_mistake_ends_the_study_and_nothing_is_kept(
    folder_in: FolderIn, tmp_path: Path
) -> None:
    """Where its spec is invalid, nothing else is tried; the file may be mended, its folder kept."""
    folder, backend = folder_in(tmp_path), FakeBackend(wrong={1})
    with pytest.raises(ExperimentFailed, match="no luck") as told:
        run_study(folder, backend, Silence())
    assert (told.value.exit_status, backend.calls) == (2, 1)
    assert folder.ended() == []
    mended = type(folder.study).from_toml(folder.study.to_toml().replace("epochs = ", "epochs = 1"))
    assert run_study(StudyFolder(folder.path, mended), FakeBackend(), Silence()).left == 0


def test_a_later_mistake_costs_only_its_run(folder_in: FolderIn, tmp_path: Path) -> None:
    """The file is right as far as it was tried; the others are run all the same."""
    backend = FakeBackend(wrong={2})
    progress = run_study(folder_in(tmp_path), backend, Silence())
    assert backend.calls == progress.total


def test_each_record_is_handed_over_once_it_is_kept(folder_in: FolderIn, tmp_path: Path) -> None:
    """In the order of the runs, each in a folder of its run's name."""
    folder, kept, backend = folder_in(tmp_path), list[Path](), FakeBackend()
    run_study(folder, backend, Silence(), kept.append)
    assert [record.parent.name for record in kept] == backend.names
    assert sorted(kept) == folder.records()


def test_only_one_process_runs_a_study(folder_in: FolderIn, tmp_path: Path) -> None:
    """A second process is refused, and the line names the first."""
    folder = folder_in(tmp_path)

    class Second(FakeBackend):
        def train(self, run: Run, *_: object) -> bytes:
            run_study(folder, FakeBackend(), Silence())
            raise AssertionError(run)

    with pytest.raises(SpecError, match=r"process \d+ is already running it"):
        run_study(folder, Second(), Silence())


def test_who_holds_a_folder_is_named_until_it_lets_go(tmp_path: Path) -> None:
    """Also if the holder ends with an error; afterwards another process may hold it."""
    assert holder(tmp_path) is None
    with pytest.raises(ZeroDivisionError), held(tmp_path):
        _fail_while(f"process {os.getpid()}", tmp_path)
    assert holder(tmp_path) is None
    with held(tmp_path), pytest.raises(SpecError, match="is already running it"), held(tmp_path):
        pass


def test_a_look_keeps_no_process_out(tmp_path: Path) -> None:
    """A look takes the lock, too, for a moment; a process that comes to hold it waits."""
    look = FileLock(tmp_path / "run.lock", thread_local=False)
    look.acquire()
    Timer(0.02, look.release).start()
    with held(tmp_path):
        assert holder(tmp_path) == f"process {os.getpid()}"


def _fail_while(who: str, folder: Path) -> None:
    assert holder(folder) == who
    raise ZeroDivisionError


def test_a_folder_that_cannot_be_held_is_refused(tmp_path: Path) -> None:
    """In one line; to a look it is held by no process."""
    (tmp_path / "run.lock").mkdir()
    with pytest.raises(SpecError, match="folder = "), held(tmp_path):
        pass
    assert holder(tmp_path) is None
