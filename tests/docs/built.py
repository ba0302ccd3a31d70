"""The built sites, and what of a page's HTML a reader notices: its text and its structure."""

import re
from collections import Counter
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

from markdown_it import MarkdownIt

from tests.docs.pages import DOCS, ROOT, Page

SITES = {"zensical": ROOT / "site", "properdocs": ROOT / "build" / "properdocs"}
"""Where `make site-both` puts what each generator makes."""
_COUNTED = {"table", "tr", "th", "td", "pre", "li", "ul", "ol", "img", "blockquote", "details"}
_COUNTED |= {f"h{level}" for level in range(1, 7)}
_VOID = {"img", "br", "hr", "input", "link", "meta"}
_ADDED = ("headerlink", "md-source-file", "md-content__button")
"""Classes of what a theme adds to an article."""


@dataclass
class Shown(HTMLParser):
    """An article's text, or all of the HTML's, without white space, and its elements by kind."""

    text: str = ""
    elements: Counter[str] = field(default_factory=Counter)
    _open: list[str] = field(default_factory=list)
    _hidden: int = 0

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Count an element, or begin to skip one that a theme has added."""
        classes = dict(attrs).get("class") or ""
        if self._hidden or any(name in classes for name in _ADDED):
            self._hidden += tag not in _VOID
            return
        if tag in _COUNTED:
            self.elements[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        """Leave an element that is skipped."""
        if self._hidden and tag not in _VOID:
            self._hidden -= 1

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.text += "".join(data.split())


def shown(html: str) -> Shown:
    """Return what a reader notices of a page."""
    article = re.search(r"<article.*?>(.*)</article>", html, re.DOTALL)
    parser = Shown()
    parser.feed(article[1] if article else html)
    return parser


def meant(page: Page) -> Shown:
    """Return what the page's Markdown says by CommonMark, which GitHub follows."""
    return shown(MarkdownIt("commonmark").enable("table").render(page.text))


def built(site: Path, page: Page) -> Path:
    """Return the file that a generator has made of a page."""
    return site / page.path.relative_to(DOCS).with_suffix(".html")
