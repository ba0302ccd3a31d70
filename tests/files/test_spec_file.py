"""Reading a spec from the file that a user wrote."""

from pathlib import Path

import pytest

from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.files.spec_file import read_spec, specs_in


def test_a_file_is_read_and_overridden(tmp_path: Path) -> None:
    """Overrides win over what stands in the file."""
    file = tmp_path / "spec.toml"
    file.write_text('name = "bigger"\nepochs = 3\n', encoding="utf-8")
    assert read_spec(file, {"epochs": 4}) == Spec(name="bigger", epochs=4)


def test_a_script_is_no_spec(tmp_path: Path) -> None:
    """The line names both ways to train with it."""
    with pytest.raises(SpecError, match=r"with --task my:NAME, or `downpour init --from .*my.py`"):
        read_spec(tmp_path / "my.py")


def test_several_needs_are_one_spec(tmp_path: Path) -> None:
    """Their value is a list, as that of `betas` is; a list of another field is a grid's."""
    file = tmp_path / "spec.toml"
    file.write_text('needs = ["gpu", "site=b"]\nprefers = ["ssd", "rack=3"]\n')
    assert read_spec(file) == Spec(needs=("gpu", "site=b"), prefers=("ssd", "rack=3"))
    file.write_text("epochs = [1, 2]\n")
    with pytest.raises(SpecError, match="makes this a grid"):
        read_spec(file)


def test_specs_of_a_folder_are_told_from_other_files(tmp_path: Path) -> None:
    """Other programs' files have a name at most, and grids and searches are for other commands."""
    texts = {
        "pyproject.toml": '[project]\nname = "mine"\n',
        "other.toml": 'name = "service"\nport = 8000\n',
        "grid.toml": "epochs = [1, 2]\n",
        "several.toml": "epochs = 1\n[[experiment]]\nshards = 1\n",
        "tuning.toml": "epochs = 1\n[search]\nruns = 2\n",
        "b.toml": 'needs = ["gpu", "ssd"]\n',
        "a.toml": 'task = "lab:Mine"\n[launch]\nworkers = 2\n',
        "notes.txt": "epochs = 1\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    assert [path.name for path in specs_in(tmp_path)] == ["a.toml", "b.toml"]
    (tmp_path / "c.toml").write_text("epochs 1")
    with pytest.raises(SpecError, match=r"c\.toml"):
        specs_in(tmp_path)
