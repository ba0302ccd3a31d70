"""What the prose linter reads of a file: English alone, each line where it stands in the file."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

PROSE = Path(__file__).parents[2] / "scripts" / "prose"

PAGE = """\
# A title

A paragraph with `code_of(it)`,
and a [link](somewhere.md).

- an item
- another

| a table | of words |
|---|---|
| is | left out |

```sh
so is code
```
"""
SCRIPT = '''\
"""Says something, as a tree::

    root: not a sentence

And as a table:

    not     a sentence
"""


def save():
    """Save it.

    Raises:
        OSError: the disk is full.
    """


size = 3  # megabytes
# The reason goes over
# two lines.
raise ValueError(f"the file {size} is much too large")
'''
IDL = """\
/**
 * A file, by name.
 */
struct File {
  1: required string name  // bare
}
"""


@pytest.fixture
def passages(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that reads files."""
    monkeypatch.syspath_prepend(str(PROSE))
    return importlib.import_module("passages")


def lines_of(passages: ModuleType, name: str, text: str) -> dict[int, str]:
    """Return the lines that hold prose, by number from 1."""
    lines = passages.prose_of(Path(name), text).split("\n")
    return {number: line for number, line in enumerate(lines, 1) if line}


def test_markdown_without_code_links_and_tables(passages: ModuleType) -> None:
    """Items of a list are passages of their own."""
    assert lines_of(passages, "page.md", PAGE) == {
        1: "A title¶",
        3: "A paragraph with `x`,",
        4: "and a link.¶",
        6: "an item¶",
        7: "another¶",
    }


def test_docstrings_comments_and_messages_of_python(passages: ModuleType) -> None:
    """Values in a message count as a word of code; drawings and tables are left out."""
    assert lines_of(passages, "script.py", SCRIPT) == {
        1: "Says something, as a tree::¶",
        5: "And as a table:¶",
        12: "Save it.¶",
        14: "Raises:¶",
        15: "OSError: the disk is full.¶",
        19: "megabytes¶",
        20: "The reason goes over",
        21: "two lines.¶",
        22: "the file `x` is much too large¶",
    }


def test_comments_of_the_thrift_definition(passages: ModuleType) -> None:
    """Without the signs that begin and end them."""
    assert lines_of(passages, "file.thrift", IDL) == {2: "A file, by name.¶", 5: "bare¶"}
