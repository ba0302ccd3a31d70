"""The page of the command line in the docs."""

from __future__ import annotations

from pathlib import Path

from downpour.cli.page import page

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"


def test_the_page_says_what_the_code_says() -> None:
    """After a change of a command or an option, `make docs` writes it anew."""
    assert PAGE.read_text(encoding="utf-8") == page(), "write it anew: make docs"
