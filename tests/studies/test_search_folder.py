"""A folder of results holds one search; whatever else is there is refused and left as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from downpour.errors import SpecError
from downpour.studies.search_folder import Folder
from downpour.studies.search_runner import run_search
from tests.studies.searching import SEARCH, FakeTrainer, Silence, folder_in


@pytest.fixture
def done(tmp_path: Path) -> Folder:
    """The small search, all done."""
    folder = folder_in(tmp_path)
    run_search(folder, FakeTrainer(), Silence())
    return folder


def content_of(path: Path) -> dict[Path, bytes]:
    """Return every file with its bytes."""
    return {file: file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def test_it_holds_what_it_says(done: Folder) -> None:
    """The search, each trial in full, the best, and once it is drawn a figure."""
    done.draw()
    names = {path.name for path in done.path.iterdir()} - {"run.lock"}
    assert names == {"tune.toml", "trials", "best.toml", "search.png", "search.svg"}
    trials = sorted((done.path / "trials").iterdir())
    assert [trial.name for trial in trials] == [f"{number:04d}" for number in range(1, 13)]
    for trial in trials:
        names = {path.name for path in trial.iterdir()}
        assert names == {"spec.toml", "record.jsonl", "summary.json"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("small", "other"),
        ("high = 1.0", "high = 2.0"),
        ("[search]", "[search]\nseed = 1"),
        ("epochs = 4", "epochs = 5"),
        ('"median"', '"halving"'),
    ],
)
def test_another_searchs_folder_is_refused(done: Folder, old: str, new: str) -> None:
    """Nothing in it is touched, not even by the search that has its name."""
    text = SEARCH.replace(", startup_trials = 3", "") if "halving" in new else SEARCH
    other = Folder(done.path, folder_in(done.path, text.replace(old, new)).search)
    before = content_of(done.path)
    with pytest.raises(SpecError, match="holds another search; choose another folder"):
        run_search(other, FakeTrainer(), Silence())
    assert content_of(done.path) == before


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    """As is a file in its place."""
    folder = folder_in(tmp_path)
    folder.path.mkdir()
    (folder.path / "thesis.tex").write_text("chapter one")
    with pytest.raises(SpecError, match=r"is not empty, and has no tune\.toml"):
        run_search(folder, FakeTrainer(), Silence())
    assert [path.name for path in folder.path.iterdir()] == ["thesis.tex"]
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match="not a folder"):
        Folder(tmp_path / "file", folder.search).check()


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("trials/0002/record.jsonl", "{}\n", "line 1 is not a fact"),
        ("trials/0002/summary.json", "{}", "not the summary of a cell"),
        ("trials/0002/spec.toml", 'name = "small"', "tells of something else than its name says"),
        ("trials/0002/spec.toml", "\x00", "cannot be read"),
        ("trials/0002/record.jsonl", None, "tells of something else than its name says"),
        ("trials/mine/notes.txt", "mine", "is no trial"),
        ("tune.toml", "name = 3", "tune.toml is not what was written"),
        ("tune.toml", b"\xff", "tune.toml cannot be read"),
    ],
)
def test_what_is_damaged_is_refused(
    done: Folder, name: str, content: str | bytes | None, reason: str
) -> None:
    """The line says which folder, and nothing is overwritten; `None` stands for another's."""
    other = (done.path / "trials" / "0003" / "record.jsonl").read_bytes()
    said = other if content is None else content
    (done.path / name).parent.mkdir(exist_ok=True)
    (done.path / name).write_bytes(said.encode() if isinstance(said, str) else said)
    before = content_of(done.path)
    with pytest.raises(SpecError, match=reason):
        run_search(done, FakeTrainer(), Silence())
    assert content_of(done.path) == before


def test_what_was_cut_off_in_being_kept_begins_anew(done: Folder) -> None:
    """A trial is there whole, or not at all."""
    trials = done.path / "trials"
    (trials / "0012").rename(trials / ".new-0012")
    (trials / ".new-0012" / "summary.json").unlink()
    before = done.tuned()
    trainer = FakeTrainer()
    run_search(done, trainer, Silence())
    assert len(before.trials) == 11
    assert (len(trainer.trained), len(done.tuned().trials)) == (1, 12)
    assert not (trials / ".new-0012").exists()


def test_a_search_without_an_accuracy_is_not_drawn(tmp_path: Path) -> None:
    """Where all have failed there is no figure, and no best."""
    folder = folder_in(tmp_path)
    tuned = run_search(folder, FakeTrainer(hopeless=set(range(1, 13))), Silence())
    assert tuned.best is None
    folder.draw()
    assert folder.files() == []
