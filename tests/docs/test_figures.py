"""A figure has a caption that names the command which made it, and a table's columns have names."""

from __future__ import annotations

from itertools import pairwise

import pytest
from markdown_it.token import Token

from tests.docs.pages import SITE, Page

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
