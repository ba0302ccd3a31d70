"""A small trace with a known law, written as users' traces are, and what is trained on it."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from downpour.predictor.features import Array
from downpour.predictor.learned import Trained
from downpour_lab.fitting import training
from downpour_lab.fitting.scoring import Fitted
from downpour_lab.fitting.training import TrainingSettings, fit_trees, train
from downpour_lab.fitting.training_data import (
    TaskSequences,
    Traces,
    TrainingSet,
    build,
    prepare,
    read_traces,
)

WORKERS = 6
TINY = TrainingSettings(nets=2, epochs=1, batch=6, units=4, wide=8, narrow=4)


def columns(jobs: int = 3, rounds: int = 12, seed: int = 0) -> dict[str, Array]:
    """Return a trace: each worker has its speed, and what others use of its CPU slows it down."""
    g = np.random.default_rng(seed)
    count = jobs * rounds * WORKERS
    job, turn, worker = (
        grid.ravel()
        for grid in np.meshgrid(range(jobs), range(rounds), range(WORKERS), indexing="ij")
    )
    speed = np.exp(g.normal(0, 0.3, (jobs, WORKERS)))[job, worker]
    busy = g.uniform(0, 0.9, count)
    seconds = 10 * speed / (1 - 0.7 * busy) * np.exp(g.normal(0, 0.02, count))
    told: dict[str, Array] = {
        "job": job,
        "round": turn,
        "worker": worker,
        "n_samples": np.full(count, 3200),
        "batches": np.full(count, 100),
        "completion_s": seconds,
    }
    for percent in (0, 10, 25):
        prefix = f"p{percent}_" if percent else ""
        told |= {
            f"{prefix}cpu_util": busy,
            f"{prefix}loadavg1": 2 * busy,
            f"{prefix}mem_used": np.full(count, 0.5),
            f"{prefix}iowait": np.full(count, 0.03),
        }
        if percent:
            told[f"{prefix}elapsed_s"] = seconds * percent / 100
    return told


def write(path: Path, told: dict[str, Array]) -> Path:
    """Write a trace."""
    np.savez(path, **told)  # type: ignore[arg-type, unused-ignore]
    return path


@pytest.fixture(scope="session")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Traces:
    """The small trace, read."""
    return read_traces(write(tmp_path_factory.mktemp("traces") / "small.npz", columns()))


@pytest.fixture(scope="session")
def sequences(traces: Traces) -> TaskSequences:
    """What the small trace teaches."""
    return build(traces)


@pytest.fixture(scope="session")
def training_set(traces: Traces) -> TrainingSet:
    """The small trace as it is, and augmented."""
    return prepare(traces)


@pytest.fixture(scope="session")
def trained(training_set: TrainingSet) -> Trained:
    """Everything trained on the small trace, as little as can be."""
    return train(training_set, [0, 1, 2], TINY)


@pytest.fixture(scope="session")
def fitted(training_set: TrainingSet, trained: Trained) -> Fitted:
    """The same, and trees."""
    return Fitted(trained, fit_trees(training_set.plain, iterations=10))


@pytest.fixture
def few_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fit ensembles of ten trees; of 200, which a user gets, those of one test take ten seconds."""
    monkeypatch.setattr(training, "fit_trees", partial(fit_trees, iterations=10))
