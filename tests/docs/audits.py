"""Audits of pages: axe-core looks at what a browser draws, and vnu checks HTML and CSS."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.docs.pages import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Page

_FOLDER = ROOT / "build" / "audits"
_PACKAGES = ("axe-core@4.10.3", "vnu-jar@23.4.11")
_FETCH_SECONDS = 60
_CHECK_SECONDS = 200


@functools.cache
def _fetched() -> str:
    """Fetch both tools unless they are there; returns why it cannot, or nothing."""
    if (_FOLDER / "node_modules").is_dir():
        return ""
    npm = shutil.which("npm")
    if npm is None:
        return "npm is not installed, which fetches axe-core and vnu-jar"
    _FOLDER.mkdir(parents=True, exist_ok=True)
    # Beside them, and moved at the end: another process may fetch them at the same time.
    with tempfile.TemporaryDirectory(dir=_FOLDER, prefix="new-") as new:
        line = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", new]
        try:
            subprocess.run(
                [*line, *_PACKAGES], capture_output=True, check=True, timeout=_FETCH_SECONDS
            )
        except subprocess.SubprocessError as error:
            return f"npm cannot fetch axe-core and vnu-jar: {type(error).__name__}"
        with contextlib.suppress(OSError):
            (Path(new) / "node_modules").rename(_FOLDER / "node_modules")
    return ""


def _tool(path: str) -> Path:
    """Return a file of the tools, which the first audit fetches; skip without them."""
    if missing := _fetched():
        pytest.skip(missing)
    return _FOLDER / "node_modules" / path


@contextmanager
def passed_before(audit: str, *sites: Path) -> Iterator[bool]:
    """Whether the files of sites have passed the block before; note it once they have."""
    files = sorted(path for site in sites for path in site.rglob("*"))
    judged = [path for path in files if path.suffix in {".html", ".css", ".js"}]
    judged += sorted(Path(__file__).parent.glob("*.py"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in judged)).hexdigest()
    note = _FOLDER / f"passed-{audit}"
    has_passed = note.is_file() and note.read_text("utf-8") == digest
    yield has_passed
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(digest, "utf-8")


def of_each_kind(pages: Iterable[Path]) -> list[Path]:
    """Return a few short pages that have every element with every class between them."""
    kinds = {page: _kinds(page.read_text("utf-8")) for page in pages}
    left, chosen = set().union(*kinds.values()), []
    while left:
        best = max(kinds, key=lambda page: len(kinds[page] & left) / page.stat().st_size)
        chosen.append(best)
        left -= kinds[best]
    return chosen


def _kinds(html: str) -> set[str]:
    elements = re.findall(r"<(\w+)(?:[^>]*?class=\"?([\w\- ]+))?", html)
    return {f"{tag}.{name}" for tag, names in elements for name in names.split() or [""]}


def seen_by_axe(page: Page) -> list[str]:
    """Return a line for each place that some readers cannot see, reach or tell apart."""
    page.evaluate(_tool("axe-core/axe.min.js").read_text("utf-8") + "\n;0")
    page.wait_for_timeout(200)  # colors fade in
    found = page.evaluate("() => axe.run(document, { resultTypes: ['violations'] })")
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
    checker = str(_tool("vnu-jar/build/dist/vnu.jar"))
    line = [java, "-Xss4m", "-jar", checker, "--errors-only", "--exit-zero-always"]
    line += ["--also-check-css", *map(str, pages)]
    try:
        done = subprocess.run(
            line, capture_output=True, text=True, check=True, timeout=_CHECK_SECONDS
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"vnu takes more than {_CHECK_SECONDS} s here")
    return [one for one in done.stderr.splitlines() if not re.search(known, one)]
