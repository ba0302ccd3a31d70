"""The rules of plain English: each flags what a reader stumbles over, and leaves good sentences."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

PROSE = Path(__file__).parents[2] / "scripts" / "prose"

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
