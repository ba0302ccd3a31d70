"""A real accelerator, whichever torch finds; on other machines these tests are skipped in one line.

Datasets are made here, so that nothing has to be fetched.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from downpour.base.values import AttemptId, Update
from downpour.cluster.worker.attempt import TaskControl
from downpour.cluster.worker.task_runner import TaskRunner
from downpour.core.resolve import resolve
from downpour.core.spec import Spec
from downpour.files.store import SharedDirectory, encode, model_metadata
from downpour.learning.accelerators import devices_here
from downpour.learning.datasets import PreparedDataset, open_prepared, prepare
from downpour.learning.tasks.loaded import load
from downpour.learning.training.loop import LocalTask, ShardTraining
from downpour.learning.training.parameters import buffers_of, parameters_of
from downpour.network.rpc.messages import TaskMessage

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let what drivers and their libraries warn of be no failure of ours."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session")
def device() -> str:
    """The best accelerator of this machine."""
    if not devices_here().accelerators:
        pytest.skip("no accelerator here")
    return devices_here().best


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 300 gray images of 40 x 40 in four classes, which are bright in other corners."""
    generator = np.random.default_rng(3)
    x, y = generator.integers(0, 100, (300, 40, 40), dtype=np.uint8), np.arange(300) % 4
    for label in range(4):
        x[y == label, 20 * (label // 2) :, 20 * (label % 2) :] += 100
    return _saved(tmp_path_factory.mktemp("images") / "set.npz", x, y)


@pytest.fixture(scope="session")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 8192 examples of 16 numbers, in two classes."""
    generator = np.random.default_rng(3)
    x, y = generator.normal(5, 3, (8192, 16)).astype(np.float32), np.arange(8192) % 2
    x[:, 0] += 9 * y
    return _saved(tmp_path_factory.mktemp("numbers") / "set.npz", x, y)


def _saved(file: Path, x: NDArray[Any], y: NDArray[Any]) -> Path:
    np.savez(file, x=x, y=y, x_test=x[:80], y_test=y[:80])
    return file


@dataclass(frozen=True)
class Bench:
    """Where trainings on an accelerator are begun; `data` is the file of examples."""

    device: str
    data: Path
    folder: Path

    def spec(self, fields: Mapping[str, Any]) -> Spec:
        """Return a spec of small batches on the device."""
        small = {"batch_size": 32, "learning_rate": 0.01, "device": self.device}
        return Spec.make({"dataset": "npz", "data_path": str(self.data), **small, **fields})

    def dataset(self) -> PreparedDataset:
        """Return the prepared examples."""
        return open_prepared(self.folder, prepare(self.spec({}), self.folder))

    def training(self, fields: Mapping[str, Any], *, spills: bool = False) -> ShardTraining:
        """Return a training of 96 examples from the spec's first parameters."""
        loaded = load(self.spec(fields), self.dataset())
        task = LocalTask(indices=np.arange(96), round=0, shard=0)
        return ShardTraining(loaded, loaded.network(), task, spills=spills)


@pytest.fixture
def bench(device: str, images: Path, tmp_path: Path) -> Bench:
    """Trainings on the images."""
    return Bench(device, images, tmp_path)


@dataclass(frozen=True)
class Office:
    """A first task in a shared directory, as a manager leaves it for workers."""

    shared: SharedDirectory
    task: TaskMessage

    def run(self, device: str, attempt: int = 0, **changes: Any) -> Update:
        """Train the task by a new worker on a device."""
        task = replace(self.task, id=replace(self.task.id, attempt=attempt), **changes)
        runner = TaskRunner(self.shared, device)
        try:
            return runner.run(task, TaskControl(task.id))
        finally:
            runner.close()


def office(folder: Path, spec: Spec, examples: int) -> Office:
    """Return the first task of a spec's experiment, on the first examples."""
    folder.mkdir(parents=True)
    shared = replace(SharedDirectory.open(folder, create=True), patience_seconds=0.1)
    resolved = resolve(spec, 1)
    key = prepare(resolved, shared.datasets)
    network = load(resolved, open_prepared(shared.datasets, key)).network()
    store = shared.create_experiment("any")
    model = encode(parameters_of(network), model_metadata(buffers_of(network)))
    task = TaskMessage(
        id=AttemptId(experiment="any", round=0, shard=0, attempt=0),
        spec=store.put_new("spec.toml", [resolved.to_toml().encode()]),
        dataset=key,
        model=store.put_new("model-0", model),
        indices=np.arange(examples),
    )
    return Office(shared, task)


def finished(training: ShardTraining) -> ShardTraining:
    """Train to the end."""
    training.advance(training.steps_total)
    return training


def same(one: ShardTraining, other: ShardTraining) -> bool:
    """Say whether two trainings agree to the last bit: in the model, the optimizer and the loss."""
    if one.mean_loss != other.mean_loss:
        return False
    pairs = (
        (one.parameters(), other.parameters()),
        (one.optimizer_state(), other.optimizer_state()),
    )
    return all(
        a.keys() == b.keys() and all(a[name].tobytes() == b[name].tobytes() for name in a)
        for a, b in pairs
    )


def numbered(device: str) -> bool:
    """Say whether devices of this kind have numbers."""
    return torch.device(device).type in {"cuda", "xpu"}
