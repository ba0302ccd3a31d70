"""Which spec `downpour run` takes if its command line names no file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from downpour.base.errors import SpecError
from downpour.cli.parameters import Values
from downpour.cli.spec_options import find_spec
from downpour.core.spec import Spec

NOTHING_SAID: Values = dict.fromkeys(("file", "resume", "on", "workers", *Spec.model_fields))


def found(**said: Any) -> tuple[Path | None, str]:
    """Return the file that a command gets, and the remark on it."""
    asked = find_spec({**NOTHING_SAID, **said})
    return asked.file, asked.remark


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with one spec and a file for another command."""
    (tmp_path / "mine.toml").write_text("epochs = 1\n")
    (tmp_path / "grid.toml").write_text("epochs = [1, 2]\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_one_spec_of_a_folder_is_taken_and_named(folder: Path) -> None:
    """The spec holds its fields."""
    remark = "no FILE was named, so this is mine.toml"
    assert found() == (folder / "mine.toml", remark)


@pytest.mark.parametrize(
    ("name", "value"),
    [("file", Path("grid.toml")), ("dataset", "digits"), ("model", "mlp"), ("task", "lab:Lab")],
)
def test_a_command_line_that_says_what_to_train_needs_no_file(name: str, value: Any) -> None:
    """A spec that happens to lie there changes nothing about `--dataset digits`."""
    Path("grid.toml").write_text("epochs = 3\n")
    assert found(**{name: value}) == (value if name == "file" else None, "")


def test_a_folder_without_a_spec_changes_nothing(folder: Path) -> None:
    """Plain `downpour run` trains the digits there."""
    (folder / "mine.toml").unlink()
    assert found() == (None, "")


def test_several_specs_are_listed(folder: Path) -> None:
    """None is guessed."""
    (folder / "a.toml").write_text("shards = 2\n")
    with pytest.raises(SpecError, match=r"in this folder: a\.toml, mine\.toml"):
        found()


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
        found(**said)
    assert str(refused.value).startswith(line)
