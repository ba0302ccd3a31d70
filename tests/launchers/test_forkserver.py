"""What the fork server says to its launcher, in lines."""

from __future__ import annotations

import json
import os
import select

import pytest

from downpour.launchers.forkserver import ForkServer


@pytest.mark.parametrize("text", ["x" * 100_000, "é" * 5000, "🙂" * 5000, "\udcff" * 5000])
def test_news_of_any_length_is_one_whole_line(text: str) -> None:
    """A long error is cut, and the line still fits a pipe at once and can be read."""
    reading, writing = os.pipe()
    server = ForkServer(requests=reading, news=writing)
    server._tell(name="worker-1", error=text)
    line = os.read(reading, 2**20)
    assert len(line) <= select.PIPE_BUF
    assert line.endswith(b"\n")
    assert json.loads(line)["error"] == text[:600]
    for descriptor in (reading, writing, server._wake, server._woken):
        os.close(descriptor)
