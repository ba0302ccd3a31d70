"""Features by name become rows of numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from downpour.predictor import features as f
from downpour.predictor.features import Features


def row(told: Features) -> list[float]:
    """Return the row of one task."""
    found: list[float] = f.task_rows([told])[0].tolist()
    return found


def test_the_latest_report_counts_and_the_one_before_is_kept() -> None:
    """In any order, and with unknown names among them."""
    found = row(
        {
            "p50_elapsed_s": 6.0,
            "p10_elapsed_s": 1.0,
            "p50_cpu_util": 0.5,
            "n_samples": 64,
            "p25_elapsed_s": 3.0,
            "cpu_util": 0.1,
            "job": 7,
            "p5x_elapsed_s": 9.0,
            "p25_color": 9.0,
        }
    )
    assert found[f.SAMPLES] == 64
    assert (found[f.SHARE], found[f.SECONDS]) == (0.5, 6.0)
    assert (found[f.SHARE_BEFORE], found[f.SECONDS_BEFORE]) == (0.25, 3.0)
    assert found[f.NOW][0] == 0.5
    assert found[f.DURING][0] == pytest.approx(0.3)
    assert math.isnan(found[f.ASSIGNED][1])


def test_an_impossible_value_counts_as_missing() -> None:
    """Negative, infinite, and reports that are earlier than the one before them."""
    found = row(
        {"n_samples": -1.0, "cpu_util": math.inf, "p10_elapsed_s": 5.0, "p25_elapsed_s": 4.0}
    )
    assert math.isnan(found[f.SAMPLES])
    assert math.isnan(found[f.ASSIGNED][0])
    assert (found[f.SHARE], found[f.SECONDS]) == (0.1, 5.0)


def test_batches_stand_in_for_samples() -> None:
    """A batch has 32 of them."""
    assert row({"batches": 3.0})[f.SAMPLES] == 96
    assert row({"batches": 3.0, "n_samples": 70.0})[f.SAMPLES] == 70


def test_tasks_told_by_different_names_are_read_together() -> None:
    """Each gets its own row, in order."""
    told: list[Features] = [{"n_samples": 1.0}, {"batches": 1.0}, {"n_samples": 2.0}, {}]
    assert np.array_equal(f.task_rows(told)[:, f.SAMPLES], [1, 32, 2, math.nan], equal_nan=True)
