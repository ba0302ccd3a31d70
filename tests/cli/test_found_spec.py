"""Which spec `downpour run` takes if its command line names no file."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from downpour.base.errors import SpecError
from downpour.cli.run import with_found_spec

NOTHING_SAID = dict.fromkeys(("file", "resume", "task", "dataset", "model"))


@with_found_spec
def given(*, remark: str = "", **arguments: Any) -> tuple[Path | None, str]:
    """A command that returns the file that it gets."""
    return arguments["file"], remark


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with one spec and a file for another command."""
    (tmp_path / "mine.toml").write_text("epochs = 1\n")
    (tmp_path / "grid.toml").write_text("epochs = [1, 2]\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_one_spec_of_a_folder_is_taken_and_named(folder: Path) -> None:
    """Users never see the argument that carries the remark."""
    assert given(**NOTHING_SAID) == (
        folder / "mine.toml",
        "no FILE was named, so this is mine.toml",
    )
    assert "remark" not in inspect.signature(given).parameters


@pytest.mark.parametrize("said", NOTHING_SAID)
def test_who_says_what_to_train_gets_that(said: str) -> None:
    """A spec that happens to lie there changes nothing about `--dataset digits`."""
    file = Path("other.toml") if said == "file" else None
    assert given(**(NOTHING_SAID | {said: file or "something"})) == (file, "")


def test_a_folder_without_a_spec_changes_nothing(folder: Path) -> None:
    """Plain `downpour run` trains the digits there."""
    (folder / "mine.toml").unlink()
    assert given(**NOTHING_SAID) == (None, "")


def test_several_specs_are_listed(folder: Path) -> None:
    """None is guessed."""
    (folder / "a.toml").write_text("shards = 2\n")
    with pytest.raises(SpecError, match=r"in this folder: a\.toml, mine\.toml"):
        given(**NOTHING_SAID)


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ({"epochs": "0"}, "epochs = 0: must be a whole number"),
        ({"workers": 0}, "workers = 0: must be a whole number"),
        ({"on": "nowhere"}, "on = 'nowhere': must be "),
        ({"momentum": "0", "nesterov": True}, "FILE = None: "),
    ],
)
def test_a_mistake_in_an_option_comes_before_the_choice_of_a_file(
    folder: Path, said: dict[str, Any], line: str
) -> None:
    """It is wrong with each of the files; a value that one file allows is not."""
    (folder / "adam.toml").write_text("optimizer = 'adam'\n")
    (folder / "mine.toml").write_text("momentum = 0.5\n")
    with pytest.raises(SpecError) as refused:
        given(**NOTHING_SAID, **said)
    assert str(refused.value).startswith(line)
