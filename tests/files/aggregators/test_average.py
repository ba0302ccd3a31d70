"""The plain mean."""

from __future__ import annotations

from typing import Any

from downpour.files.aggregators import AGGREGATORS


def test_everybody_counts_the_same(imagine: Any) -> None:
    """Neither samples nor losses matter."""
    parts = [imagine(0, samples=1, loss=9.0), imagine(1, samples=99, loss=0.0)]
    assert AGGREGATORS["average"](parts) == (0.5, 0.5)
