"""Trains a predictor from traces: the one recipe behind `downpour predictor train`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from downpour.predictor.fitting.ridge_fit import fit_ridge
from downpour.predictor.fitting.training_data import Step, TrainingSet
from downpour.predictor.model_file import Trained

if TYPE_CHECKING:
    from downpour.predictor.fitting.lstm_training import TrainingSettings


def train(
    training_set: TrainingSet,
    jobs: Sequence[int],
    settings: TrainingSettings,
    step: Step = lambda _: None,
) -> Trained:
    """Train every model of a file on some jobs; call `step` after each epoch of each net."""
    from downpour.predictor.fitting.lstm_training import train_lstm

    plain, other = training_set.plain.of(jobs), training_set.augmented.of(jobs)
    return Trained(
        ridge=fit_ridge(plain),
        lstm=train_lstm([plain, other], settings, lambda loss: step(f"training ({loss:.4f})")),
        traces=training_set.traces,
    )
