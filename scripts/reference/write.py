"""`make docs`: writes the pages of docs/reference/ that follow from the code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import cli_page
import python_page
import spec_page
import thrift_page

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
PAGES: dict[str, Callable[[], str]] = {
    "cli.md": cli_page.page,
    "python.md": python_page.page,
    "spec.md": spec_page.page,
    "thrift.md": thrift_page.page,
}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), "utf-8")
