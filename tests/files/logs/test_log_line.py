"""Lines of a log: any text goes through a line of JSON unharmed, and nothing else is taken."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.files.logs.log_places import TEXT_CHARACTERS_MAX, TRACE_CHARACTERS_MAX, LogLine


def line(text: str = "hello", trace: str = "", at: float = 1.5) -> LogLine:
    """Make a line."""
    return LogLine(
        at=at, host="h", name="worker-1", pid=7, level="error", source="s", text=text, trace=trace
    )


@given(st.text(max_size=200), st.text(max_size=200))
def test_any_text_is_one_line_and_comes_back(text: str, trace: str) -> None:
    """Line breaks and control characters too; half of a surrogate pair comes back escaped."""
    written = line(text, trace).to_bytes()
    assert written.count(b"\n") == 1
    assert written.isascii()
    read = LogLine.of(written)
    assert read is not None
    assert read.text == text.encode(errors="backslashreplace").decode()
    assert read.trace == trace.encode(errors="backslashreplace").decode()


def test_long_text_keeps_its_beginning_and_a_long_traceback_its_end() -> None:
    """A message begins with what it is about; the error itself is a traceback's last line."""
    read = LogLine.of(line("a" + "b" * 10_000, "c" * 50_000 + "d").to_bytes())
    assert read is not None
    assert len(read.text) == TEXT_CHARACTERS_MAX
    assert read.text.startswith("ab")
    assert len(read.trace) == TRACE_CHARACTERS_MAX
    assert read.trace.endswith("cd")


@pytest.mark.parametrize(
    "written",
    [
        b"",
        b"not JSON\n",
        b"[]\n",
        b'{"at": 1}\n',
        line().to_bytes().replace(b'"error"', b'"loud"'),
        line().to_bytes().replace(b"1.5", b"NaN"),
        line().to_bytes().replace(b"1.5", b"1e300"),
        line().to_bytes()[:-9],
    ],
)
def test_a_damaged_line_is_none(written: bytes) -> None:
    """A crash has cut it off, another program wrote it, or no clock shows its time."""
    assert LogLine.of(written) is None


def test_a_field_of_a_later_version_is_skipped() -> None:
    """So that logs stay readable while a cluster is upgraded."""
    assert LogLine.of(line().to_bytes().replace(b"{", b'{"mood": 3, ')) == line()
    assert math.isclose(line().at, 1.5)
