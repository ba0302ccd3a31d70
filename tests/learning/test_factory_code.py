"""A factory's code is told apart by its files, on every machine alike."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from downpour.base.errors import OtherCode, SpecError
from downpour.learning.user_code import Project, check_code, code_of, fixed_code, variables_of
from tests.conftest import Allow

NETS = "mine.nets:build"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowing: Allow) -> Path:
    """Return a folder with a package, a module beside it, and files that are never imported."""
    for name, text in {
        "mine/__init__.py": "",
        "mine/nets.py": "from . import layers\nfrom mine.deep.more import x\nimport helpers, torch",
        "mine/layers.py": "def build():\n    from .deep import more",
        "mine/deep/__init__.py": "import json",
        "mine/deep/more.py": "x = 1",
        "mine/other.py": "",
        "helpers.py": "from mine import nets",
        "strangers.py": "",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    allowing(tmp_path, "mine", "helpers")
    for module in [name for name in sys.modules if name.split(".")[0] in {"mine", "helpers"}]:
        monkeypatch.delitem(sys.modules, module)
    importlib.invalidate_caches()
    return tmp_path


ALL = {"mine/__init__.py", "mine/nets.py", "mine/layers.py", "mine/deep/__init__.py"}
ALL |= {"mine/deep/more.py", "helpers.py"}


@pytest.mark.usefixtures("project")
def test_imports_of_the_project_belong_to_the_code() -> None:
    """Relative and absolute, inside functions, packages on the way; no libraries, no strangers."""
    assert set(code_of("model", NETS)) == ALL
    assert set(code_of("model", "helpers:build")) == ALL


def test_of_an_installed_module_only_its_package_counts(project: Path, allowing: Allow) -> None:
    """What else lies in site-packages is another's."""
    installed = project / "site-packages"
    installed.mkdir()
    (project / "mine").rename(installed / "mine")
    (project / "helpers.py").rename(installed / "helpers.py")
    allowing(installed)
    assert set(code_of("model", NETS)) == ALL - {"helpers.py"}


def test_our_own_networks_have_the_version_for_that() -> None:
    """They are no files of the user's."""
    assert code_of("model", "digits-cnn") == {}


@pytest.mark.parametrize("file", sorted(ALL))
def test_another_file_is_other_code(project: Path, file: str) -> None:
    """Each file counts, and is named; put back, all is as before."""
    known = fixed_code({"model": NETS}, {})
    path = project / file
    before = path.read_text()
    path.write_text(before + "\n# changed")
    with pytest.raises(OtherCode, match=file):
        check_code("model", NETS, known)
    path.write_text(before)
    check_code("model", NETS, known)


def test_the_imported_code_counts_after_a_change(project: Path) -> None:
    """A process goes on with what it has read, and takes nothing that means something else."""
    known = fixed_code({"model": NETS}, {})
    importlib.import_module("mine.nets")
    (project / "mine" / "layers.py").write_text("def build(): return 2")
    check_code("model", NETS, known)
    with pytest.raises(SpecError, match=r"mine/layers.py has changed since .* restart the manager"):
        fixed_code({"model": NETS}, {})


@pytest.mark.usefixtures("project")
def test_a_spec_may_ask_for_the_code_of_an_earlier_run() -> None:
    """Its digests are part of the resolved spec: who runs that again gets the same or one line."""
    known = fixed_code({"model": NETS}, {})
    assert fixed_code({"model": NETS}, known) == known
    with pytest.raises(SpecError, match=r"helpers.py differs"):
        fixed_code({"model": NETS}, {**known, "helpers.py": "0" * 16})


def test_a_module_that_cannot_be_parsed_is_still_told_apart(project: Path) -> None:
    """What is wrong with it is said where it is imported."""
    (project / "mine" / "nets.py").write_text("def build(:")
    assert set(code_of("model", NETS)) == {"mine/__init__.py", "mine/nets.py"}


def test_the_variables_that_code_reads_are_found() -> None:
    """However it asks; what it sets, and a dictionary of another name, is not meant."""
    content = b"""
import os
from os import environ, getenv
a, b, c = os.environ["A"], os.environ.get("B", "1"), os.getenv("C")
d, e = environ["D"], getenv("E")
os.environ["F"] = "1"
g = settings["G"]
h = settings.get("H")
"""
    project = Project(files={"lab.py": content, "broken.py": b"os.getenv('I'"})
    assert variables_of(project) == ("A", "B", "C", "D", "E")
