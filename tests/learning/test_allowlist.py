"""What a spec may name, and what it may not."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from downpour.base.errors import SpecError
from downpour.learning.allowlist import (
    FOLDERS,
    VARIABLE,
    allow,
    allow_beside,
    allow_in,
    check_factory,
    load_factory,
    source_file,
)


@pytest.fixture(autouse=True)
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of the user's, not yet allowed."""
    path = tmp_path / "allowed_probe.py"
    path.write_text("from subprocess import run\nanswer = 42\ndef make():\n    return 42\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    return path


def test_a_factory_outside_the_list_is_refused_by_naming_the_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The refusal says which prefixes are allowed, and by what."""
    with pytest.raises(SpecError, match="DOWNPOUR_ALLOW allows none on "):
        load_factory("dataset", "allowed_probe:make")
    monkeypatch.setenv(VARIABLE, "one.package,other")
    with pytest.raises(SpecError, match=r"allows modules under one\.package, other on"):
        load_factory("dataset", "allowed_probe:make")


@pytest.mark.parametrize(
    "listed", ["", "downpour", "downpour.learning.datasets,downpour.learning.models"]
)
@pytest.mark.parametrize(
    "name",
    [
        "downpour.learning.datasets:prepare",
        "downpour.learning.datasets.built_in:found_or_downloaded",
        "downpour.learning.models:build",
    ],
)
def test_no_part_of_this_package_is_a_factory(
    name: str, listed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A spec could otherwise have a manager open any file, even a FIFO; no list changes that."""
    monkeypatch.setenv(VARIABLE, listed)
    with pytest.raises(SpecError, match="by name alone"):
        check_factory("dataset", name)


def test_the_variable_adds_a_prefix(own_module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module whose prefix is in DOWNPOUR_ALLOW may be named; its file can be found."""
    monkeypatch.setenv(VARIABLE, "other.package, allowed_probe")
    assert load_factory("dataset", "allowed_probe:make")() == 42
    assert source_file("allowed_probe") == own_module


def test_an_imported_function_is_no_factory(monkeypatch: pytest.MonkeyPatch) -> None:
    """An allowed module does not open the doors of all that it uses."""
    monkeypatch.setenv(VARIABLE, "allowed_probe")
    with pytest.raises(SpecError, match="allows modules under allowed_probe"):
        load_factory("dataset", "allowed_probe:run")


def test_a_prefix_ends_at_a_dot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allowing `allowed` does not allow `allowed_probe`."""
    monkeypatch.setenv(VARIABLE, "allowed")
    with pytest.raises(SpecError):
        check_factory("model", "allowed_probe:make")


@pytest.mark.parametrize(
    "name", ["os:system", "subprocess:run", "downpour.files.store:x", "a:b.c", ":x"]
)
def test_dangerous_and_malformed_names_are_refused(name: str) -> None:
    """Nothing that happens to be installed can be called, and only one plain name is looked up."""
    with pytest.raises(SpecError):
        check_factory("model", name)


@pytest.mark.parametrize("name", ["allowed_probe:nothing", "allowed_probe:answer"])
def test_a_missing_or_uncallable_factory_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that leads to no function is the user's mistake, in one line."""
    monkeypatch.setenv(VARIABLE, "allowed_probe")
    with pytest.raises(SpecError, match="allowed_probe"):
        load_factory("model", name)


def test_a_folder_of_ones_own_is_searched_last(
    own_module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module there is found if it is allowed, and cannot stand in for one that is installed."""
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in ("folder_probe", own_module.stem):
        (folder / f"{name}.py").write_text("def make():\n    return 'mine'\n")
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.setenv(FOLDERS, "")
    allow_in([folder], ["folder_probe", own_module.stem])
    assert load_factory("dataset", "folder_probe:make")() == "mine"
    assert load_factory("dataset", f"{own_module.stem}:make")() == 42
    assert os.environ[FOLDERS] == str(folder)


def test_a_module_that_is_nowhere_is_refused_with_the_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And with the variable that adds one; a package that the module lacks needs another remedy."""
    (tmp_path / "lacking_probe.py").write_text("import fancy\n")
    monkeypatch.setattr("sys.path", [*sys.path])
    allow_in([tmp_path], ["gone", "lacking_probe"])
    with pytest.raises(SpecError, match=f" and {tmp_path}: DOWNPOUR_CODE=FOLDER adds one$"):
        load_factory("task", "gone.lab:Mine")
    with pytest.raises(SpecError, match=r"No module named 'fancy' \(lacking_probe.py:1 in .*\)$"):
        load_factory("task", "lacking_probe:Mine")


def test_only_names_of_modules_are_allowed() -> None:
    """A file's name or a factory's is another thing."""
    wrongs: list[Any] = ["lab.py:make", "lab/nets", "", "my lab", 3, None]
    for wrong in wrongs:
        with pytest.raises(SpecError, match="must be a module's name, such as"):
            allow(wrong)


def test_a_module_is_allowed_from_python_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processes that this one starts find it, too; what is installed needs no folder."""
    (tmp_path / "placed_probe.py").write_text("def make():\n    return 42\n")
    for variable in (VARIABLE, FOLDERS):
        monkeypatch.setenv(variable, "")
    allow("placed_probe", "numpy")
    assert os.environ[VARIABLE] == "placed_probe,numpy"
    assert os.environ[FOLDERS] == str(tmp_path)
    assert load_factory("dataset", "placed_probe:make")() == 42


@pytest.mark.parametrize("file", ["beside_module.py", "beside_package/__init__.py"])
def test_a_module_beside_a_spec_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """It is the user's own code; nothing else in the spec is."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv(FOLDERS, "")
    monkeypatch.setenv(VARIABLE, "")
    folder = tmp_path / "project"
    (folder / file).parent.mkdir(parents=True)
    (folder / file).write_text("def make():\n    return 43\n")
    name = file.partition("/")[0].removesuffix(".py")
    allow_beside(folder, [f"{name}:make", "subprocess:run", "digits"])
    assert os.environ[VARIABLE] == name
    assert load_factory("dataset", f"{name}:make")() == 43


@pytest.mark.parametrize("name", ["allowed_probe:make", "subprocess:run", "sys:exit", "gone:make"])
def test_a_file_beside_a_spec_does_not_stand_for_another_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Python would import the module that it finds first, so that one is not allowed."""
    monkeypatch.setenv(VARIABLE, "")
    folder = tmp_path / "project"
    folder.mkdir()
    for module in ("allowed_probe", "subprocess", "sys"):
        (folder / f"{module}.py").touch()
    allow_beside(folder, [name])
    assert os.environ[VARIABLE] == ""
    with pytest.raises(SpecError, match="allows none on "):
        check_factory("dataset", name)
