"""Every link and every name of a page leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import BESIDE, DOCS, EVERY, ROOT, SITE, Page


def _name(page: Page) -> str:
    return page.name


@pytest.mark.parametrize("page", EVERY, ids=_name)
def test_every_link_leads_somewhere(page: Page) -> None:
    """To a file that is there, and to a heading that it has."""
    for link in page.links():
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.path.parent / path) if path else page.path
        assert target.exists(), f"{page.name} links to {link}: there is no such file"
        if anchor:
            assert anchor in Page(target).anchors(), f"{page.name} links to {link}: no such heading"


@pytest.mark.parametrize("page", SITE, ids=_name)
def test_the_site_links_only_to_itself(page: Page) -> None:
    """A site has what is in docs/; pages name other files by their paths from the root."""
    for link in page.links():
        target = (page.path.parent / link.partition("#")[0]).resolve()
        assert "://" in link or target.is_relative_to(DOCS), (
            f"{page.name} links to {link}, outside docs/: name the path as code instead"
        )


def test_every_page_that_code_or_text_names_is_there() -> None:
    """As `docs/how-to/slurm.md` in a help text, a comment or another page."""
    named = re.compile(r"docs/[\w/-]+\.md")
    folders = ("src", "benchmarks", "examples", "idl", "docker", "tests", "release", "scripts")
    files = [path for folder in folders for path in _texts(ROOT / folder)]
    files += [page.path for page in (*SITE, *BESIDE)]
    files += [ROOT / "pyproject.toml", ROOT / "Makefile", ROOT / "mkdocs.yml"]
    for file in files:
        for page in set(named.findall(file.read_text("utf-8"))):
            assert (ROOT / page).exists(), f"{file.relative_to(ROOT)} names {page}"


def _texts(folder: Path) -> list[Path]:
    kinds = {".md", ".py", ".sh", ".sbatch", ".thrift", ".toml", ".yml", ".yaml"}
    texts = [path for path in folder.rglob("*") if path.suffix in kinds and path.is_file()]
    # Benchmarks install other systems under out/.
    return [path for path in texts if "out" not in path.relative_to(folder).parts]
