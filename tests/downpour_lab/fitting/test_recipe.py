"""Training on traces that hold no more than they must."""

from __future__ import annotations

from pathlib import Path

import pytest

from downpour.predictor import make
from downpour_lab.fitting.training import train
from downpour_lab.fitting.training_data import REQUIRED, prepare, read_traces
from tests.predictor.conftest import TINY, columns, write


@pytest.mark.parametrize("name", ["ridge", "lstm"])
def test_traces_without_reports_train_a_predictor(name: str, tmp_path: Path) -> None:
    """It predicts at assignment; after a report it extrapolates, in rising quantiles."""
    told = {column: values for column, values in columns().items() if column in REQUIRED}
    trained = train(prepare(read_traces(write(tmp_path / "bare.npz", told))), [0, 1, 2], TINY)
    predictor = make(name, trained)
    for _ in range(3):
        predictor.observe("w", {"n_samples": 3200.0}, 10.0)
    assert 4 < predictor.predict("w", {"n_samples": 3200.0}).q50 < 25
    late = predictor.predict("w", {"n_samples": 3200.0, "p25_elapsed_s": 10.0})
    assert list(late.quantiles) == sorted(late.quantiles)
    assert late.q50 == pytest.approx(40, rel=0.3)
