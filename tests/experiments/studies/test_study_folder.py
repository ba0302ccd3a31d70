"""The folder of a study: whole, its own, and never overwritten by another's."""

import hashlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import downpour
from downpour.base.errors import SpecError
from downpour.core.resolve import LocalOptimizer
from downpour.core.spec import ResolvedSpec
from downpour.experiments.studies import (
    Grid,
    StudyFolder,
    StudySpec,
    grid_results,
    read_folder,
    run_study,
    study,
)
from downpour.experiments.studies.search import draw_search, search_files
from tests.experiments.studies.conftest import (
    GRID,
    SEARCH,
    FakeBackend,
    Silence,
    grid_folder,
    record_of,
    search_folder,
)
from tests.specs import plain_spec


def done(folder: StudyFolder[StudySpec]) -> StudyFolder[StudySpec]:
    """Run all of a study."""
    run_study(folder, FakeBackend(), Silence())
    return folder


@pytest.fixture
def grid(tmp_path: Path) -> StudyFolder[Grid]:
    """A folder whose grid is done."""
    folder = grid_folder(tmp_path / "grid")
    done(folder)
    return folder


@pytest.fixture(params=[grid_folder, search_folder], ids=["grid", "search"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> StudyFolder[StudySpec]:
    """A folder whose study is done."""
    return done(request.param(tmp_path))


def content(path: Path) -> dict[str, str]:
    """Return a digest of every file in a folder."""
    files = (file for file in path.rglob("*") if file.is_file())
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def some_run(folder: StudyFolder[StudySpec]) -> Path:
    """Return the folder of a run."""
    return folder.records()[1].parent


def test_a_run_is_kept_with_what_made_it(grid: StudyFolder[Grid]) -> None:
    """Its spec, its record as it was, and a summary."""
    name, run = next(iter(grid.study.runs.items()))
    place = grid.record(name).parent
    assert ResolvedSpec.from_toml((place / "spec.toml").read_text()) == run.spec
    assert (place / "record.jsonl").read_bytes() == record_of(run)
    summary = {ended.run.name: ended.summary for ended in grid.ended()}[name]
    assert (summary.state, summary.workers, summary.seed) == ("finished", 1, 0)
    assert summary.last == summary.epochs[-1]
    assert set(summary.last) == {"accuracy", "loss"}


def test_a_grids_folder_holds_what_it_says(grid: StudyFolder[Grid]) -> None:
    """Earlier and later versions find files of these names."""
    names = {path.name for path in grid.path.iterdir()} - {"run.lock"}
    assert names == {"grid.toml", "cells"}
    assert {path.name for path in (grid.path / "cells").iterdir()} == set(grid.study.runs)


def test_a_searchs_folder_holds_what_it_says(tmp_path: Path) -> None:
    """The search, each run in full, the best, and once it is drawn a figure."""
    folder = search_folder(tmp_path)
    done(folder)
    assert search_files(folder) == [folder.path / "best.toml"]
    draw_search(folder)
    names = {path.name for path in folder.path.iterdir()} - {"run.lock"}
    assert names == {"tune.toml", "trials", "best.toml", "search.png", "search.svg"}
    assert [file.name for file in search_files(folder)] == ["best.toml", "search.png", "search.svg"]
    runs = sorted((folder.path / "trials").iterdir())
    assert [run.name for run in runs] == [f"{number:04d}" for number in range(1, 13)]
    for run in runs:
        names = {path.name for path in run.iterdir()}
        assert names == {"spec.toml", "record.jsonl", "summary.json"}


def test_a_search_without_an_accuracy_is_not_drawn(tmp_path: Path) -> None:
    """Where all have failed there is no figure, and no best."""
    folder = search_folder(tmp_path)
    run_study(folder, FakeBackend(hopeless=set(range(1, 13))), Silence())
    draw_search(folder)
    assert search_files(folder) == []


@pytest.mark.parametrize(
    ("make", "axis"),
    [
        (grid_folder, "learning_rate=[0.1, 0.2]"),
        (search_folder, "[search]\ntrials=2\nlearning_rate=[0.1, 0.2]"),
    ],
)
def test_results_of_a_users_task_need_no_code_of_it(
    make: Callable[[Path, str], StudyFolder[StudySpec]],
    axis: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The task brought its optimizer; the process that reads the results lacks its module."""
    monkeypatch.setattr(study, "trainer_of", lambda *_: LocalOptimizer(momentum=None))
    folder = done(make(tmp_path, f'name="small"\nworkers=2\ntask="gone:Mine"\n{axis}\n'))
    monkeypatch.setattr(study, "trainer_of", lambda *_: pytest.fail("looks at the task"))
    again = read_folder(folder.path, type(folder.study))
    again.check()
    assert [one.run.spec.optimizer_state for one in again.ended()] == ["reset", "reset"]
    assert again.study.plan(again.ended()).progress.left == 0


def test_what_was_cut_off_begins_anew(folder: StudyFolder[StudySpec]) -> None:
    """A run whose writing a power failure cut off does not count, and leaves no files."""
    place = folder.records()[-1].parent
    place.rename(place.with_name(f".new-{place.name}"))
    (place.with_name(f".new-{place.name}") / "summary.json").unlink()
    assert place.name not in [ended.run.name for ended in folder.ended()]
    backend = FakeBackend()
    assert run_study(folder, backend, Silence()).left == 0
    assert backend.names == [place.name]
    assert not list(place.parent.glob(".*"))


def test_a_folder_that_was_cut_off_at_its_beginning_is_as_good_as_empty(
    folder: StudyFolder[StudySpec], tmp_path: Path
) -> None:
    """The file of what was asked for was being written, or had just been."""
    torn = StudyFolder(tmp_path / "torn", folder.study)
    torn.path.mkdir(parents=True)
    (torn.path / f".new-{torn.study_file.name}").write_text("na")
    torn.check()
    torn.study_file.write_text(folder.study.to_toml())
    torn.check()
    assert done(torn).ended()


def written(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    """Return what changes a file of a run, or with a pattern what was asked for."""

    def harm(run: Path) -> None:
        (file,) = (file for file in run.glob(name) if file.name != "best.toml")
        file.write_bytes(change(file.read_bytes()))

    return harm


def flipped(record: bytes) -> bytes:
    """Change a digit of a record, which is still one."""
    place = record.rindex(b'"accuracy": 0.') + len(b'"accuracy": 0.')
    return record[:place] + b"%d" % (9 - int(record[place : place + 1])) + record[place + 1 :]


def exchange(run: Path) -> None:
    """Put another run's record in."""
    others = (place for place in run.parent.iterdir() if place.name != run.name)
    (run / "record.jsonl").write_bytes((next(others) / "record.jsonl").read_bytes())


def add(run: Path) -> None:
    """Lay a folder of a user's beside the runs."""
    (run.parent / "mine").mkdir()
    (run.parent / "mine" / "notes.txt").write_text("mine")


OTHER_SPEC = plain_spec(epochs=9, shards=1).to_toml().encode()


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (
            written("record.jsonl", lambda record: b"nonsense\n" + record),
            "record.jsonl cannot be read: line 1 is not a fact",
        ),
        (written("record.jsonl", lambda record: record[: len(record) // 2]), ""),
        (written("record.jsonl", flipped), "record.jsonl or spec.toml has changed since the run"),
        (lambda run: (run / "record.jsonl").unlink(), "record.jsonl cannot be read: No such file"),
        (written("record.jsonl", lambda _: b"{}\n"), "line 1 is not a fact"),
        (written("summary.json", lambda _: b"{}"), "not the summary of a run"),
        (
            written("summary.json", lambda text: text.replace(b'"finished"', b'"running"')),
            "has not ended: running",
        ),
        (written("spec.toml", lambda _: OTHER_SPEC), "holds a different run than its name says"),
        (written("spec.toml", lambda _: b"\x00"), "spec.toml cannot be read"),
        (exchange, "holds a different run than its name says"),
        (lambda run: run.rename(run.with_name("w9-random-average-s0-0123456789")), "holds another"),
        (add, "summary.json cannot be read: No such file"),
        (written("../../*.toml", lambda _: b"split = []"), "toml is damaged"),
        (written("../../*.toml", lambda _: b"\xff"), "toml cannot be read"),
    ],
)
def test_what_is_not_whole_is_refused_and_left_as_it_is(
    folder: StudyFolder[StudySpec], harm: Callable[[Path], None], reason: str
) -> None:
    """One line that names the folder; nothing is run, and nothing changed."""
    harm(some_run(folder))
    before = content(folder.path)
    backend = FakeBackend()
    with pytest.raises(SpecError, match="folder = ") as told:
        run_study(folder, backend, Silence())
    line = str(told.value)
    assert "\n" not in line
    assert str(folder.path) in line
    assert reason in line
    assert backend.calls == 0
    assert content(folder.path) == before


@pytest.mark.parametrize(
    ("folder_in", "text", "old", "new", "changed"),
    [
        (grid_folder, GRID, 'name = "small"', 'name = "other"', "name was small"),
        (grid_folder, GRID, "epochs = 2", "epochs = 3", "epochs was 2"),
        (grid_folder, GRID, "trials = 2", "trials = 1", "trials was 2"),
        (grid_folder, GRID, '"class"', '"equal"', "split was "),
        (search_folder, SEARCH, "small", "other", "name was small"),
        (search_folder, SEARCH, "high = 1.0", "high = 2.0", "high was 1.0"),
        (search_folder, SEARCH, "[search]", "[search]\nseed = 1", "search.seed was 0"),
        (search_folder, SEARCH, "epochs = 4", "epochs = 5", "epochs was 4"),
        (search_folder, SEARCH, '"median", startup_trials = 3', '"halving"', "search.pruner"),
    ],
)
def test_the_folder_of_another_study_is_refused(
    tmp_path: Path,
    folder_in: Callable[..., StudyFolder[StudySpec]],
    text: str,
    old: str,
    new: str,
    changed: str,
) -> None:
    """Also that of one that had more than is asked for now; the line says what has changed."""
    folder = done(folder_in(tmp_path))
    other = StudyFolder(folder.path, type(folder.study).from_toml(text.replace(old, new)))
    before = content(folder.path)
    line = rf"holds another {folder.study.kind}, .*{changed}.*; choose another folder with --out"
    with pytest.raises(SpecError, match=line):
        run_study(other, FakeBackend(), Silence())
    assert content(folder.path) == before


def test_a_folder_of_something_else_is_refused(
    folder: StudyFolder[StudySpec], tmp_path: Path
) -> None:
    """A folder with files in it, or a file in its place."""
    thesis = tmp_path / "mine" / "thesis.tex"
    thesis.parent.mkdir()
    thesis.write_text("years of work")
    for path, reason in (
        (thesis.parent, r"is not empty, and has no \w+\.toml"),
        (thesis, "not a folder"),
    ):
        with pytest.raises(SpecError, match=reason):
            run_study(StudyFolder(path, folder.study), FakeBackend(), Silence())
    assert [path.name for path in thesis.parent.iterdir()] == ["thesis.tex"]


def test_a_folder_that_does_not_exist_is_not_called_full(tmp_path: Path) -> None:
    """Who reads a study names its folder, and may mistype it."""
    with pytest.raises(SpecError, match="no such folder"):
        read_folder(tmp_path / "nowhere", Grid)


def test_a_study_has_each_run_at_its_place(grid: StudyFolder[Grid]) -> None:
    """A run that two subgrids share stands in both."""
    workers, splits = grid_results(grid).subgrids
    assert [len(workers.at(values)) for values in workers.settings] == [2, 2]
    shared = [run.result for run in splits.at(("random", "average"))]
    assert shared == [run.result for run in workers.at((2,))]


def test_a_study_is_a_data_frame(grid: StudyFolder[Grid]) -> None:
    """A row for each run, with its value on every axis and what it came to."""
    pytest.importorskip("pandas")
    frame = downpour.Study.read(grid.path).to_frame()
    ran = [run.result for subgrid in grid_results(grid).subgrids for run in subgrid.runs]
    accuracies = {run.experiment: run.accuracy for run in ran}
    assert dict(zip(frame["experiment"], frame["accuracy"], strict=True)) == accuracies
    assert set(frame["state"]) == {"finished"}
    assert Counter(frame["subgrid"]) == {"workers": 2, "workers, splits": 2, "splits": 6}
    first = frame[["workers", "split", "aggregate"]].iloc[0]
    assert list(first) == [1, "random", "average"]
    with pytest.raises(SpecError, match="must be a folder of `downpour grid`"):
        downpour.Study.read(grid.path / "runs")
