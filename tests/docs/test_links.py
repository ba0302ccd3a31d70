"""Every link, name, caption and column of a page says what it leads to; all pages are listed."""

import re
from collections.abc import Iterator
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import yaml
from markdown_it.token import Token
from typer import Context

from downpour.cli.commands import build, titled_commands
from tests.docs.pages import BESIDE, DOCS, EVERY, ROOT, SITE, Page

NAMED = attrgetter("name")


@pytest.mark.parametrize("page", EVERY, ids=NAMED)
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


@pytest.mark.parametrize("page", SITE, ids=NAMED)
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


@pytest.mark.parametrize("page", PAGES, ids=NAMED)
def test_every_figure_has_a_caption_with_its_command(page: Page) -> None:
    """It stands in the paragraph below the figure, or below several that belong together."""
    paragraphs = [token for token in page.tokens() if token.type == "inline"]
    for figures, caption in pairwise(paragraphs):
        if named := _figures(figures):
            assert caption.content.startswith("*"), f"{page.name}: no caption below {named}"
            assert _names_a_command(caption), f"{page.name}: no command below {named}"


@pytest.mark.parametrize("page", SITE, ids=NAMED)
def test_every_column_has_a_name(page: Page) -> None:
    """A screen reader says it before each cell."""
    named = [cell.content for head, cell in pairwise(page.tokens()) if head.type == "th_open"]
    assert all(named), f"{page.name}: a head without a word beside {', '.join(filter(None, named))}"


class _Plain(yaml.SafeLoader):
    """Reads past tags that name Python's objects."""


_Plain.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


def navigation() -> list[Any]:
    """Return the navigation as `mkdocs.yml` has it."""
    # The loader is a safe one that knows fewer tags.
    config = yaml.load((ROOT / "mkdocs.yml").read_text("utf-8"), _Plain)  # noqa: S506
    return list(config["nav"])


def _entries(entries: Any) -> Iterator[str]:
    for entry in entries if isinstance(entries, list) else [entries]:
        if isinstance(entry, str):
            yield entry
        else:
            for below in entry.values():
                yield from _entries(below)


def test_every_page_is_in_the_navigation_once() -> None:
    """A new page needs its line in `mkdocs.yml`, and a page that is gone loses it.

    Pages for those who change the code are in no menu.
    """
    pages = (page.path.relative_to(DOCS).as_posix() for page in SITE)
    shown = sorted(page for page in pages if not page.startswith("internals/"))
    assert sorted(_entries(navigation())) == shown


def test_how_to_pages_are_grouped_as_the_commands_are() -> None:
    """Who knows `downpour --help` finds the page, and the other way round."""
    (guides,) = (
        entry["How-to guides"]
        for entry in navigation()
        if isinstance(entry, dict) and "How-to guides" in entry
    )
    titles = [title for group in guides for title in group]
    group: Any = build()
    context = Context(group, info_name=group.name, **group.context_settings)
    assert titles == [title for title, _ in titled_commands(group, context)]
