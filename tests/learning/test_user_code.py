"""A factory's code is told apart by its files; packages stay, and each worker says which differ."""

import importlib
import sys
from importlib import metadata
from pathlib import Path

import pytest

from downpour.base.errors import OtherCode, SpecError
from downpour.core.spec import Spec
from downpour.learning.user_code import (
    Project,
    check_code,
    code_of,
    differences,
    fixed_code,
    package_imports,
    variables_of,
    versions_of,
)
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
    restart = r"mine/layers.py has changed since .* manager, and workers without --accept-code"
    with pytest.raises(SpecError, match=restart):
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
