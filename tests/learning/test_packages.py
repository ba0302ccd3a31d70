"""Packages stay where they are, and each worker says which of its own differ."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from downpour.core.spec import Spec
from downpour.learning.user_code import differences, package_imports, versions_of
from tests.conftest import Allow

LAB = """
import os, json
import fancy.deep
import lab_helpers
from yarn import thread
from . import relative

def build():
    import lazily
    try:
        import missing_everywhere
    except ImportError:
        pass
"""
TORCH = metadata.version("torch").partition("+")[0]


def install(folder: Path, name: str, version: str, module: str) -> None:
    """Install a distribution with one module, as pip does."""
    about = folder / f"{name}-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (about / "top_level.txt").write_text(f"{module}\n")
    (folder / f"{module}.py").write_text("raise SystemExit('nothing is imported')")


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowing: Allow) -> Spec:
    """A spec whose project imports three packages; two are called alike, one is not."""
    installed = tmp_path / "site-packages"
    install(installed, "fancy", "1.2", "fancy")
    install(installed, "knitting", "3.0+cu128", "yarn")
    install(installed, "lazily", "0.1", "lazily")
    monkeypatch.syspath_prepend(str(installed))
    project = tmp_path / "project"
    project.mkdir()
    (project / "packages_lab.py").write_text(LAB)
    (project / "lab_helpers.py").write_text("import numpy")
    allowing(project, "packages_lab")
    return Spec(model="packages_lab:build")


@pytest.mark.slow
def test_a_project_has_the_versions_of_what_it_imports(spec: Spec) -> None:
    """Torch always; by a distribution's name, also where a function or another file imports it."""
    assert versions_of(spec) == {
        "fancy": "1.2",
        "knitting": "3.0",  # of which build, numeric classes say
        "lazily": "0.1",
        "numpy": metadata.version("numpy"),
        "torch": TORCH,
    }


def test_imports_at_the_head_of_files_can_be_made_ahead(tmp_path: Path, allowing: Allow) -> None:
    """Of packages, in order, up to the first statement or file of the project that may matter."""
    head = '"""A task."""\nimport json, yarn.deep as deep\nfrom fancy import thread, needle\n'
    names = ("yarn.deep", "fancy:thread", "fancy:needle")
    more = ("", "import heads_helpers", "from . import relative", "deep.use(thread)", "if x: pass")
    (tmp_path / "heads_helpers.py").write_text("import torch")
    allowing(tmp_path, "heads_lab")
    spec = Spec(model="heads_lab:build")
    for line in more:
        (tmp_path / "heads_lab.py").write_text(f"{head}{line}\nfrom downpour import Task, numpy\n")
        assert package_imports(spec) == names
    (tmp_path / "heads_lab.py").write_text(f"{head}import torch\n")
    assert package_imports(spec) == (*names, "torch")


@pytest.mark.parametrize("text", ["", "import numpy", "import sys; sys.path.append('vendored')"])
def test_a_package_of_the_project_runs_before_its_modules(
    tmp_path: Path, allowing: Allow, text: str
) -> None:
    """So a statement in it comes before their imports."""
    lab = tmp_path / f"heads_{len(text)}"
    lab.mkdir()
    (lab / "__init__.py").write_text(text)
    (lab / "tasks.py").write_text("import fancy")
    allowing(tmp_path, lab.name)
    found = package_imports(Spec(model=f"{lab.name}.tasks:build"))
    assert found == {"": ("fancy",), "import numpy": ("numpy", "fancy")}.get(text, ())


def test_networks_of_ours_import_nothing_ahead() -> None:
    """The process that forks has what they need."""
    assert package_imports(Spec()) == ()


def test_only_what_is_trained_counts(spec: Spec) -> None:
    """Workers read what a dataset's factory has made, and have our networks with Downpour."""
    assert versions_of(Spec()) == {}
    assert versions_of(Spec(dataset=spec.model)) == {}


@pytest.mark.slow
def test_only_different_versions_are_listed(spec: Spec) -> None:
    """A worker has the same, another version, or none; none but a project's own is looked at."""
    noted = versions_of(spec)
    assert differences(noted) == ()
    assert differences({}) == ()
    asked = {**noted, "fancy": "1.3", "no-such-package": "2.0"}
    assert differences(asked) == (
        "fancy 1.2, the manager 1.3",
        "no no-such-package, the manager 2.0",
    )


@pytest.mark.parametrize("name", ["", "../x", "a b", "\n", "x" * 5000])
def test_odd_names_are_not_there(name: str) -> None:
    """A spec may name anything."""
    assert len(differences({name: "1"})) == 1
