"""What others wrote does nothing to a terminal, a table or a log."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.base.errors import one_line, size_in_words
from downpour.host.process import LogFormatter


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("as it is, ä – 水 [red]", "as it is, ä – 水 [red]"),
        ("\x1b[2J\x1b]0;owned\x07", r"\x1b[2J\x1b]0;owned\x07"),
        ("one\ntwo\r\nthree\tfour\u2028five", "one two  three four five"),
        ("\x9b31m, \u202eback, \udc80", r"\x9b31m, \u202eback, \udc80"),
    ],
)
def test_control_characters_are_shown(text: str, shown: str) -> None:
    """Breaks as spaces, what would turn or hide text by its number; all else stays."""
    assert one_line(text) == shown


@given(st.text())
def test_a_line_can_be_printed(text: str) -> None:
    """Whatever it was; and a second time nothing is left to do."""
    line = one_line(text)
    assert line.isprintable()
    assert one_line(line) == line


@pytest.mark.parametrize(
    ("count_bytes", "of_bytes", "words"),
    [
        (0, 0, "0 bytes"),
        (999, 0, "999 bytes"),
        (10**6, 0, "1 MB"),
        (999_600_000, 0, "1 GB"),
        (120 * 10**6, 4 * 10**9, "0.12 of 4 GB"),
    ],
)
def test_a_size_has_three_digits(count_bytes: int, of_bytes: int, words: str) -> None:
    """A part and its whole have one unit."""
    assert size_in_words(count_bytes, of_bytes) == words


def test_a_log_keeps_its_lines() -> None:
    """A message is one, and only a traceback adds more."""
    error = ValueError("\x1b[2Jfirst\x85second")
    line = "worker %s left"
    record = logging.LogRecord(
        "a", logging.INFO, "", 0, line, ("x\n\x1b[31my",), (ValueError, error, None)
    )
    lines = LogFormatter("%(name)s: %(message)s").format(record).split("\n")
    assert lines == [r"a: worker x \x1b[31my left", r"ValueError: \x1b[2Jfirst second"]
