"""The pages as a reader's Markdown engine takes them apart: fences, links, images, headings."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GENERATED = ("reference/cli.md", "reference/python.md", "reference/spec.md", "reference/thrift.md")
_MARKDOWN = MarkdownIt("commonmark").enable("table")


@dataclass(frozen=True)
class Fence:
    """A fenced block: its language, what is in it, and where it begins."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        """Say where it is, as an editor takes it."""
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Page:
    """A file of Markdown."""

    path: Path

    @property
    def name(self) -> str:
        """The path below the repository's root."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def text(self) -> str:
        return self.path.read_text("utf-8")

    def tokens(self) -> list[Token]:
        """Return the blocks of the page."""
        return _tokens(self.path)

    def fences(self, *languages: str) -> list[Fence]:
        """Return the fenced blocks in one of these languages; without any, return all."""
        return [
            Fence(self.name, token.map[0] + 1, token.info.strip(), token.content)
            for token in self.tokens()
            if token.type == "fence" and token.map
            if not languages or token.info.strip() in languages
        ]

    def inline(self) -> Iterator[Token]:
        """Yield links, images, spans of code and what else is inside of blocks."""
        for token in self.tokens():
            yield from token.children or ()

    def links(self) -> list[str]:
        """Return where the page's links and images lead."""
        found = (token.attrGet("href") or token.attrGet("src") for token in self.inline())
        return [str(target) for target in found if target]

    def spans(self) -> list[str]:
        """Return the code inside of sentences."""
        return [token.content for token in self.inline() if token.type == "code_inline"]

    def anchors(self) -> list[str]:
        """Return the anchors of the headings, as GitHub makes them."""
        seen: Counter[str] = Counter()
        made = []
        for opening, title in pairwise(self.tokens()):
            if opening.type == "heading_open":
                slug = _slug(title)
                made.append(f"{slug}-{seen[slug]}" if seen[slug] else slug)
                seen[slug] += 1
        return made


@cache
def _tokens(path: Path) -> list[Token]:
    return _MARKDOWN.parse(path.read_text("utf-8"))


def _slug(title: Token) -> str:
    shown = "".join(t.content for t in title.children or () if t.type in {"text", "code_inline"})
    return re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")


SITE = [Page(path) for path in sorted(DOCS.rglob("*.md"))]
"""The pages of the site."""
WRITTEN = [page for page in SITE if not page.name.endswith(GENERATED)]
"""Those that people write."""
BESIDE = [Page(path) for path in sorted(ROOT.glob("*.md"))]
"""Those beside the README."""
EVERY = [*SITE, *BESIDE]
