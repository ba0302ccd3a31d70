"""What is published: built to the same bytes, with nothing too much, and the checkout as it was."""

import importlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from importlib.metadata import PathDistribution
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from downpour.base import VERSION

ROOT = Path(__file__).parents[1]
SOURCES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "NOTICE")
BUILD = "from setuptools import build_meta; print(build_meta.build_wheel({folder!r}))"


def names_in(folder: Path) -> set[Path]:
    """Return every path below a folder."""
    return {path.relative_to(folder) for path in folder.rglob("*")}


def checkout_in(folder: Path) -> Path:
    """Copy what the package is made of."""
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", folder / "src", ignore=unwanted)
    for name in SOURCES:
        shutil.copy(ROOT / name, folder)
    return folder


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The modules of `make release`, by name."""
    monkeypatch.syspath_prepend(str(ROOT / "release"))
    return {name: importlib.import_module(name) for name in ("archives", "contents", "licenses")}


def packed(path: Path, names: list[str], time_seconds: int, user: str) -> Path:
    """A `.tar.gz` with a small file of each name."""
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.uname = len(name), time_seconds, user
            member.mode = 0o600 + time_seconds % 8
            archive.addfile(member, io.BytesIO(name.encode()))
    return path


def test_settled_archives_do_not_tell_who_built_them_when(
    release: dict[str, ModuleType], tmp_path: Path
) -> None:
    """Order, times, owners and modes no longer differ; the files and their contents stay."""
    names = ["top/b", "top/a", "top/" + "long/" * 40 + "c"]
    one = packed(tmp_path / "one.tar.gz", names, 1_700_000_000, "ann")
    other = packed(tmp_path / "other.tar.gz", names[::-1], 1_700_000_005, "bob")
    assert one.read_bytes() != other.read_bytes()
    for path in (one, other):
        release["archives"].settle(path, 1_600_000_000)
    assert one.read_bytes() == other.read_bytes()
    with tarfile.open(one) as archive:
        held = {member.name: archive.extractfile(member) for member in archive}
        assert list(held) == sorted(names)
        assert all(file and file.read() == name.encode() for name, file in held.items())


def test_an_archive_with_too_little_or_too_much_is_refused(release: dict[str, ModuleType]) -> None:
    """Each such file is named."""
    lines = release["contents"].differences(["a", "cache", "tests/t.py"], {"a", "py.typed"})
    assert lines == ["lacks py.typed", "holds cache, too", "holds tests/t.py, too"]
    assert release["contents"].differences(["b", "a"], {"a", "b"}) == []


@pytest.mark.parametrize(
    ("stated", "found"),
    [
        ({"License-Expression": "MIT", "License": "no"}, "MIT"),
        ({"Classifier": "License :: OSI Approved :: BSD License"}, "BSD License"),
        ({"Classifier": "License :: OSI Approved", "License": "Zlib\n\ntext"}, "Zlib"),
        ({"Classifier": "Typing :: Typed"}, "not stated"),
    ],
)
def test_a_license_is_read_where_packages_state_it(
    release: dict[str, ModuleType], tmp_path: Path, stated: dict[str, str], found: str
) -> None:
    """As classifiers or a text; who states none is in the table, as in the bill of materials."""
    message = Message()
    for field, value in {"Name": "thing", "Version": "1.5", **stated}.items():
        message[field] = value.replace("\n", "\n        ")
    (tmp_path / "METADATA").write_text(str(message))
    packages = [PathDistribution(tmp_path)]
    table = release["licenses"].license_table(packages)
    assert table.splitlines()[2] == f"| thing | 1.5 | {found} |"
    assert len(table.splitlines()) == 4, "and the library that the wheel has"
    bill: list[dict[str, Any]] = [{"name": "thing"}, {"name": "thing", "licenses": []}]
    release["licenses"].add_licenses(bill, packages)
    assert [one["licenses"] for one in bill] == [[{"license": {"name": found}}], []]


def test_the_library_in_the_wheel_is_the_one_that_is_listed(release: dict[str, ModuleType]) -> None:
    """Its own first line has its version; NOTICE names it as well."""
    bundled = release["licenses"].BUNDLED
    script = ROOT / "src/downpour/show/dashboard/page/uplot/uPlot.iife.min.js"
    assert f"uPlot (v{bundled['version']})" in script.read_text("utf-8")[:200]
    assert f"uPlot {bundled['version']}" in (ROOT / "NOTICE").read_text("utf-8")


def test_every_file_has_a_license_whose_text_is_here() -> None:
    """Ours goes for all files, and exceptions for files that are there."""
    first, *others = tomllib.loads((ROOT / "REUSE.toml").read_text("utf-8"))["annotations"]
    assert (first["path"], first["SPDX-License-Identifier"]) == ("**", "Apache-2.0")
    assert [one["path"] for one in others if not any(ROOT.glob(one["path"]))] == []
    named = {one["SPDX-License-Identifier"] for one in (first, *others)}
    there = {path.stem for path in (ROOT / "LICENSES").iterdir() if path.is_file()}
    assert there == named, "some are links, which end nowhere once a file moves"


def test_the_citation_names_this_version() -> None:
    """It is of the format that CITATION.cff has had since 2021."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert (cited["cff-version"], cited["version"]) == ("1.2.0", VERSION)
    assert {"message", "title", "authors"} <= set(cited)


def test_every_form_for_issues_asks_for_something() -> None:
    """A form needs a name, a description, and fields whose identifiers differ."""
    forms = [*(ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml")]
    assert forms
    for form in forms:
        said = yaml.safe_load(form.read_text("utf-8"))
        names = [field["id"] for field in said["body"] if field["type"] != "markdown"]
        assert said["name"]
        assert said["description"]
        assert names
        assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("target", "there", "installed"),
    [
        ("run", [], ["digits"]),
        ("test", [], ["dev"]),
        ("test", [".installed-run"], ["dev"]),
        ("venv", [".installed-run"], ["dev"]),
        ("run", [".installed-run"], []),
        ("run", [".installed"], []),
        ("test", [".installed"], []),
    ],
)
def test_make_installs_what_a_target_needs(
    tmp_path: Path, target: str, there: list[str], installed: list[str]
) -> None:
    """An environment that has everything serves all targets, and a small one can grow."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / ".venv").mkdir()
    for stamp in there:
        (tmp_path / ".venv" / stamp).touch()
    line = ["make", "--dry-run", "--no-print-directory", target]
    told = subprocess.run(line, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert re.findall(r"--editable '\.\[(.*)\]'", told) == installed


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10"])
def test_an_old_python_is_told_in_one_line(tmp_path: Path, version: str) -> None:
    """From a clone, by `python -m downpour` and by `make`; pip has a line of its own."""
    python = f"python{version}"
    if shutil.which(python) is None or subprocess.run([python, "-c", ""], check=False).returncode:
        pytest.skip(f"{python} is not installed")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    line = [python, "-m", "downpour", "run"]
    done = subprocess.run(line, env=environment, check=False, capture_output=True, text=True)
    assert done.stderr == f"downpour: needs Python 3.11 or newer, and this is {version}\n"
    assert done.returncode == 1
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    line = ["make", "--no-print-directory", "run", f"PYTHON={python}"]
    done = subprocess.run(line, cwd=tmp_path, check=False, capture_output=True, text=True)
    said, _made = done.stderr.splitlines()
    assert said == "Downpour needs Python 3.11 or newer: make run PYTHON=python3.11"
    assert not (tmp_path / ".venv").exists()


@pytest.fixture
def installing(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script with which `make` installs."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module("install")


def test_uv_gets_what_pip_is_configured_with(installing: ModuleType) -> None:
    """`pip install` reads three sections, of which the environment wins."""
    listed = [
        "global.index-url='https://one.test/simple'",
        "global.cert='/a/b.pem'",
        "global.quiet='1'",
        "download.index-url='https://other.test/simple'",
        "install.extra-index-url='https://two.test/simple\\nhttps://three.test/a=b'",
        ":env:.find-links='/wheels /more.wheels'",
        ":env:.cert='/c.pem'",
    ]
    assert installing.for_uv(installing.pip_settings(listed)) == {
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_DEFAULT_INDEX": "https://one.test/simple",
        "UV_INDEX": "https://two.test/simple https://three.test/a=b",
        "UV_FIND_LINKS": "/wheels,/more.wheels",
        "SSL_CERT_FILE": "/c.pem",
    }


def test_pip_installs_where_uv_would_install_something_else(installing: ModuleType) -> None:
    """A setting that uv has no word for may decide what is installed."""
    assert installing.for_uv(installing.pip_settings([])) is not None
    assert installing.for_uv(installing.pip_settings([":env:.proxy='here:3128'"])) is None
    assert installing.for_uv(installing.pip_settings(["global.no-binary=':all:'"])) is None


@pytest.mark.slow
def test_both_archives_hold_the_package_alone(
    release: dict[str, ModuleType], tmp_path: Path
) -> None:
    """Two builds have the same bytes; no tests, no caches, but data and licenses."""
    pytest.importorskip("build", reason="build is not installed")
    checkout = checkout_in(tmp_path / "checkout")
    (checkout / "tests").mkdir()
    (checkout / "tests" / "test_thing.py").touch()
    tracked = {path.as_posix() for path in names_in(checkout) if (checkout / path).is_file()}
    builds = [release["archives"].build(checkout, tmp_path / name, 10**9) for name in ("a", "b")]
    for one, other in zip(*builds, strict=True):
        assert one.read_bytes() == other.read_bytes()
    sdist, wheel = builds[0]
    assert release["contents"].check_sdist(sdist, tracked) == []
    assert release["contents"].check_wheel(wheel, tracked) == []
    data = {"downpour/py.typed", "downpour/predictor/pretrained.safetensors"}
    data |= {"downpour/cli/templates/lora/spec.toml"}
    assert data <= set(zipfile.ZipFile(wheel).namelist())


@pytest.mark.slow
def test_a_wheel_is_built_outside_the_checkout(tmp_path: Path) -> None:
    """Neither build/ nor metadata stay behind, and the wheel has code and data."""
    pytest.importorskip("setuptools", minversion="77")
    checkout, wheels = checkout_in(tmp_path / "checkout"), tmp_path / "wheels"
    wheels.mkdir()
    before = names_in(checkout)
    code = BUILD.format(folder=str(wheels))
    subprocess.run(
        [sys.executable, "-B", "-c", code], cwd=checkout, check=True, capture_output=True
    )
    assert names_in(checkout) == before
    [wheel] = wheels.iterdir()
    archive = zipfile.ZipFile(wheel)
    held = archive.namelist()
    assert {"downpour/cli/__init__.py", "downpour/show/report.html"} <= set(held)
    page = "downpour/show/dashboard/page"
    assert {f"{page}/index.html", f"{page}/main.js", f"{page}/uplot/uPlot.iife.min.js"} <= set(held)
    assert f"{page}/uplot/LICENSE" in held, "the library's licence goes where the library goes"
    assert any(name.endswith("/licenses/NOTICE") for name in held)
    [about] = (archive.read(name).decode() for name in held if name.endswith("/METADATA"))
    assert "\nAuthor: The Downpour authors\n" in about
    assert "| One slow worker: four epochs take " in about
    assert "](docs/figures/" not in about, "an index has no pictures of the checkout"
