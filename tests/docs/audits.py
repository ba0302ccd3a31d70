"""Audits of pages: axe-core looks at what a browser draws, and vnu checks HTML and CSS."""

from __future__ import annotations

import functools
import hashlib
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.docs.pages import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Page

_FOLDER = ROOT / "build" / "audits"
# The first cell of a table whose rows have names stays empty in Markdown.
_OPTIONS = "{ resultTypes: ['violations'], rules: { 'empty-table-header': { enabled: false } } }"
_PACKAGES = ("axe-core@4.10.3", "vnu-jar@23.4.11")


@functools.cache
def _tools() -> Path:
    """Return the folder of both tools, which the first audit fetches; skip without them."""
    npm, found = shutil.which("npm"), _FOLDER / "node_modules"
    if all((found / package.partition("@")[0]).is_dir() for package in _PACKAGES):
        return found
    if npm is None:
        pytest.skip("npm is not installed, which fetches axe-core and vnu-jar")
    line = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(_FOLDER)]
    _FOLDER.mkdir(parents=True, exist_ok=True)
    done = subprocess.run([*line, *_PACKAGES], capture_output=True, check=False, timeout=200)
    if done.returncode:
        pytest.skip("npm cannot fetch axe-core and vnu-jar")
    return found


@contextmanager
def passed_before(site: Path) -> Iterator[bool]:
    """Whether the files of a site have passed the block before; note it once they have."""
    files = sorted(path for path in site.rglob("*") if path.suffix in {".html", ".css", ".js"})
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    note = _FOLDER / f"passed-{site.name}"
    has_passed = note.is_file() and note.read_text("utf-8") == digest
    yield has_passed
    note.write_text(digest, "utf-8")


def seen_by_axe(page: Page) -> list[str]:
    """Return a line for each place that some readers cannot see, reach or tell apart."""
    page.evaluate((_tools() / "axe-core" / "axe.min.js").read_text("utf-8") + "\n;0")
    page.wait_for_timeout(200)  # colors fade in
    found = page.evaluate("() => axe.run(document, OPTIONS)".replace("OPTIONS", _OPTIONS))
    return [
        f"{rule['id']}: {' '.join(map(str, node['target']))}: {node['failureSummary']}"
        for rule in found["violations"]
        for node in rule["nodes"]
    ]


def seen_by_vnu(pages: Iterable[Path], known: str) -> list[str]:
    """Return a line for each error in HTML or CSS, except for those with a known reason."""
    java = shutil.which("java")
    if java is None:
        pytest.skip("java is not installed, which runs vnu")
    checker = _tools() / "vnu-jar" / "build" / "dist" / "vnu.jar"
    line = [
        java,
        "-Xss4m",
        "-jar",
        str(checker),
        "--errors-only",
        "--exit-zero-always",
        "--also-check-css",
    ]
    done = subprocess.run(
        [*line, *map(str, pages)], capture_output=True, text=True, check=True, timeout=280
    )
    return [one for one in done.stderr.splitlines() if not re.search(known, one)]
