"""Every link, name, caption and column of a page says what it leads to."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from markdown_it.token import Token

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


COMMANDS = ("downpour ", "python ", "make ")

PAGES = [page for page in SITE if not page.name.startswith("docs/lessons/")]
"""A lesson's figures are made by the cell above them."""


def _figures(paragraph: Token) -> list[str]:
    return [
        str(token.attrGet("src")) for token in paragraph.children or () if token.type == "image"
    ]


def _names_a_command(paragraph: Token) -> bool:
    spans = (one.content for one in paragraph.children or () if one.type == "code_inline")
    return any(span.startswith(COMMANDS) for span in spans)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_figure_has_a_caption_with_its_command(page: Page) -> None:
    """It stands in the paragraph below the figure, or below several that belong together."""
    paragraphs = [token for token in page.tokens() if token.type == "inline"]
    for figures, caption in pairwise(paragraphs):
        if named := _figures(figures):
            assert caption.content.startswith("*"), f"{page.name}: no caption below {named}"
            assert _names_a_command(caption), f"{page.name}: no command below {named}"


@pytest.mark.parametrize("page", SITE, ids=lambda page: page.name)
def test_every_column_has_a_name(page: Page) -> None:
    """A screen reader says it before each cell."""
    named = [cell.content for head, cell in pairwise(page.tokens()) if head.type == "th_open"]
    assert all(named), f"{page.name}: a head without a word beside {', '.join(filter(None, named))}"
