"""What the code published with the ECE751 report did."""

from __future__ import annotations

from typing import Any

from downpour.files.aggregators import AGGREGATORS


def test_shard_zero_is_everything(imagine: Any) -> None:
    """Wherever it stands among the contributions."""
    assert AGGREGATORS["first"]([imagine(2), imagine(0), imagine(1)]) == (0.0, 1.0, 0.0)


def test_without_shard_zero_the_lowest_counts(imagine: Any) -> None:
    """One contribution must have the weight."""
    assert AGGREGATORS["first"]([imagine(2), imagine(1)]) == (0.0, 1.0)
