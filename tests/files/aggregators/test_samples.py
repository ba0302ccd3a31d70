"""FedAvg's mean."""

from __future__ import annotations

from typing import Any

from downpour.files.aggregators import AGGREGATORS


def test_more_samples_count_more(imagine: Any) -> None:
    """A shard three times the size has three times the say."""
    parts = [imagine(0, samples=100), imagine(1, samples=300)]
    assert AGGREGATORS["samples"](parts) == (0.25, 0.75)
