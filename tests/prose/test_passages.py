"""The prose linter: what it reads of a file, and what each rule flags."""

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


STUMBLES = {
    "length": "The manager reads " + "and reads " * 15 + "files.",
    "numbers": "It took 3, 4.5, 17 and 1,200 seconds.",
    "what": "The record names what was asked of it.",
    "for": "It gives up, for a retry would fail as well.",
    "there": "There is a file that names the manager.",
    "again": "A worker that dies is started again.",
    "which": "The file which names the port, which is free, comes first.",
    "where": "Where the manager has ended, workers wait.",
    "passive": "It is written by the manager.",
    "british": "The neighbour's behaviour changed.",
    "plain": "Nobody reads the file.",
}

FINE = """
The manager restarts workers that die. If the manager crashes, workers wait, for example for a new
lease. What does a round cost? Version 3.11 of Python reads 1,000 files in 2 s. A worker says which
files it holds, and where they are. It advises you to revise the promise. It waits for the leader.
"""


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of our own rules."""
    monkeypatch.syspath_prepend(str(PROSE))
    return importlib.import_module("rules")


def flagged(rules: ModuleType, text: str) -> set[str]:
    """Return the names of the rules that flag a text."""
    return {
        check.path_segments[1] for check in rules.RULES if list(check.check_with_flags(text + "¶"))
    }


@pytest.mark.parametrize("name", STUMBLES)
def test_each_rule_flags_its_own_kind_of_sentence(rules: ModuleType, name: str) -> None:
    """No other rule flags it, so a message names the cause."""
    assert flagged(rules, STUMBLES[name]) == {name}


def test_every_rule_has_an_example(rules: ModuleType) -> None:
    """A new rule comes with a sentence that it flags."""
    assert {check.path_segments[1] for check in rules.RULES} == set(STUMBLES)


def test_plain_sentences_pass(rules: ModuleType) -> None:
    """Questions, places, prepositions and American spelling are fine."""
    assert flagged(rules, FINE) == set()


def test_a_rule_finds_words_on_both_sides_of_a_line_break(rules: ModuleType) -> None:
    """The span begins at the first word."""
    text = "A worker is\nstarted again."
    (found,) = [
        result
        for check in rules.RULES
        for result in check.check(text + "¶")
        if "again" in check.path
    ]
    assert text[slice(*found.span)] == "is\nstarted again"
