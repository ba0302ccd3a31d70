"""Predicts how long a worker will take for a task: a family of predictors, and the default.

`pretrained()` makes the predictor for a run: the shipped LSTM, recalibrated with each outcome. A
selector in front of the LSTM uses a simpler model if that one is better on the run at hand. To add
a model, write a file with a `Model` and name it in `MODELS`. `downpour_lab/fitting/` fits and
scores models; nothing here imports it.
"""

from collections.abc import Callable
from pathlib import Path

from downpour.base.errors import SpecError, did_you_mean
from downpour.predictor.calibration import Online, Recalibrated, Selector
from downpour.predictor.features import Model, Predictor
from downpour.predictor.learned import Ewma, LastValue, Lstm, Median, Ridge, Trained, read_trained


def _lstm(trained: Trained) -> Model:
    return Recalibrated(Lstm(trained.lstm))


MODELS: dict[str, Callable[[Trained], Model]] = {
    "last-value": lambda _: LastValue(),
    "ewma": lambda _: Ewma(),
    "median": lambda _: Median(),
    "ridge": lambda trained: Ridge(trained.ridge),
    "lstm": _lstm,
    "selector": lambda trained: Selector(
        {"lstm": _lstm(trained), "ewma": Ewma(), "last-value": LastValue(), "median": Median()}
    ),
}


def make(name: str, trained: Trained) -> Predictor:
    """Return a new predictor of the family."""
    if name not in MODELS:
        accepted = f"must be one of {', '.join(MODELS)}"
        raise SpecError("predictor", name, accepted + did_you_mean(name, MODELS))
    return Online(MODELS[name](trained))


def pretrained(path: Path | None = None) -> Predictor:
    """Return a new predictor for one run, from a model file or from the shipped one."""
    return make("selector", read_trained(path))
