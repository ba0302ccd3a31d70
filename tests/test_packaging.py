"""Building the package leaves the checkout as it was."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUILD = "from setuptools import build_meta; print(build_meta.build_wheel({folder!r}))"


def names_in(folder: Path) -> set[Path]:
    """Return every path below a folder."""
    return {path.relative_to(folder) for path in folder.rglob("*")}


@pytest.mark.slow
def test_a_wheel_is_built_outside_the_checkout(tmp_path: Path) -> None:
    """Neither build/ nor metadata stay behind, and the wheel has code and data."""
    pytest.importorskip("setuptools", minversion="77")
    checkout, wheels = tmp_path / "checkout", tmp_path / "wheels"
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", checkout / "src", ignore=unwanted)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, checkout)
    wheels.mkdir()
    before = names_in(checkout)
    code = BUILD.format(folder=str(wheels))
    subprocess.run(
        [sys.executable, "-B", "-c", code], cwd=checkout, check=True, capture_output=True
    )
    assert names_in(checkout) == before
    [wheel] = wheels.iterdir()
    held = zipfile.ZipFile(wheel).namelist()
    assert {"downpour/cli/__init__.py", "downpour/experiments/pages/page.html"} <= set(held)
    page = "downpour/experiments/dashboard/page"
    assert {f"{page}/index.html", f"{page}/main.js", f"{page}/uplot/uPlot.iife.min.js"} <= set(held)
    assert f"{page}/uplot/LICENSE" in held, "the library's licence goes where the library goes"
    assert any(name.endswith("/licenses/NOTICE") for name in held)
