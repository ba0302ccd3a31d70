"""The small shared values: frozen, and readable where people meet them."""

from __future__ import annotations

import dataclasses

import pytest

from downpour.values import AttemptId, NumericClass


def test_an_attempt_is_named_for_people() -> None:
    """Logs and reports show an attempt as one phrase; attempts sort by round, shard and try."""
    second = AttemptId(experiment="e", round=1, shard=2, attempt=1)
    assert str(second) == "round 1 shard 2 attempt 1"
    assert dataclasses.replace(second, attempt=0) < second


def test_a_value_cannot_be_changed() -> None:
    """Whoever holds a value may keep it."""
    numeric_class = NumericClass(torch="2.15", device="cpu", instruction_set="AVX512")
    assert str(numeric_class) == "torch 2.15 on cpu (AVX512)"
    with pytest.raises(dataclasses.FrozenInstanceError):
        numeric_class.device = "cuda"  # type: ignore[misc]
