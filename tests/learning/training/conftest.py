"""A small prepared dataset and tasks on it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from downpour.core.spec import Spec
from downpour.learning.datasets import PreparedDataset, open_prepared, prepare
from downpour.learning.tasks.batches import Classification
from downpour.learning.tasks.loaded import LoadedTask, load
from downpour.learning.training.epoch_order import KeptArrays
from downpour.learning.training.loop import LocalTask, ShardTraining
from tests.learning.datasets.conftest import npz_spec

# Dropout, two memory layouts and a last batch that is not full.
BASE: dict[str, Any] = {"model": "mnist-cnn", "batch_size": 16, "learning_rate": 0.01}


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    """A hundred gray images of 8 x 8 in four classes, which are bright in different corners."""
    return _prepared(tmp_path_factory.mktemp("images"), images=True)


@pytest.fixture(scope="session")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    """A hundred examples of five numbers, in two classes."""
    return _prepared(tmp_path_factory.mktemp("numbers"), images=False)


def _prepared(folder: Path, *, images: bool) -> PreparedDataset:
    generator = np.random.default_rng(3)
    x: NDArray[Any]
    if images:
        x, y = generator.integers(0, 100, (100, 8, 8), dtype=np.uint8), np.arange(100) % 4
        for label in range(4):
            x[y == label, 4 * (label // 2) :, 4 * (label % 2) :] += 100
    else:
        x, y = generator.normal(5, 3, (100, 5)), np.arange(100) % 2
        x[:, 0] += 9 * y
    spec = npz_spec(folder, x=x, y=y, x_test=x[:40], y_test=y[:40])
    return open_prepared(folder, prepare(spec, folder))


def started(
    dataset: PreparedDataset,
    fields: Mapping[str, Any] | None = None,
    *,
    count: int = 90,
    round_: int = 0,
    shard: int = 0,
    optimizer_state: Mapping[str, NDArray[Any]] | None = None,
    orders: KeptArrays | None = None,
) -> ShardTraining:
    """Return training on the first `count` examples, from the spec's initial parameters."""
    spec = Spec.make({**BASE, **(fields or {})})
    task = LocalTask(indices=np.arange(count), round=round_, shard=shard)
    loaded = load(spec, dataset)
    return ShardTraining(loaded, loaded.network(), task, optimizer_state, orders=orders)


def with_network(
    spec: Spec, dataset: PreparedDataset, network: Callable[[], nn.Module]
) -> LoadedTask:
    """Return the built-in task with a network that a test makes, drawn from the same seed."""

    class Given(Classification):
        def model(self) -> nn.Module:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(1)
                return network()

    here = spec.replace(device="cpu")
    return LoadedTask(here, Given(here, dataset), dataset)


def same_bytes(one: Mapping[str, NDArray[Any]], other: Mapping[str, NDArray[Any]]) -> bool:
    """Say whether two sets of arrays agree to the last bit."""
    return one.keys() == other.keys() and all(
        value.dtype == other[name].dtype and value.tobytes() == other[name].tobytes()
        for name, value in one.items()
    )


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
