"""Samples a second of the local training loop, against loops that anybody would write.

Contenders take turns in small slices, and the ratios are medians over the slices, so that a busy
machine slows all of them alike. All use one thread, SGD and the same network: the plain one is
written here as textbooks write it, with tensors in memory, float32 and the default memory layout;
the loader is a DataLoader, over torchvision's MNIST with ToTensor and Normalize, or over a
TensorDataset of the digits. MNIST is measured where `--data-dir` or DOWNPOUR_DATA names a folder
that has it.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from common import Row, command_line, show
from networks import PlainDigits, PlainMnist
from torch import Tensor, nn
from torch.nn import functional

from downpour.core.spec import Spec
from downpour.learning.datasets import PreparedDataset, open_prepared, prepare
from downpour.learning.tasks.loaded import load
from downpour.learning.training.loop import LocalTask, ShardTraining

Slice = Callable[[], None]
Examples = torch.utils.data.Dataset[tuple[Tensor, Tensor]]

STEPS = 20
SGD = {"learning_rate": 0.01, "momentum": 0.5, "batch_size": 64}


def ours(spec: Spec, dataset: PreparedDataset) -> Slice:
    """Return slices of ShardTraining over the whole training set, epoch after epoch."""
    loaded = load(spec, dataset)
    model = loaded.network()
    indices = np.arange(dataset.facts.train_samples)

    def tasks() -> Iterator[ShardTraining]:
        epoch = 0
        while True:
            training = ShardTraining(
                loaded, model, LocalTask(indices=indices, round=epoch, shard=0)
            )
            # Whole batches only, as in the other contenders.
            while training.steps_done + STEPS < training.steps_total:
                yield training
            epoch += 1

    running = tasks()
    return lambda: next(running).advance(STEPS)


def stepper(model: nn.Module) -> Callable[[Tensor, Tensor], None]:
    """Return the plainest training step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def in_memory(dataset: PreparedDataset) -> tuple[Tensor, Tensor]:
    """Return all training images [n, c, h, w], normalized float32, and their labels."""
    dataset.train.verify(None)
    raw = torch.from_numpy(dataset.train.x.astype(np.float32)).permute(0, 3, 1, 2).contiguous()
    x_all = (raw - float(dataset.mean[0])) / float(dataset.std[0])
    return x_all, torch.from_numpy(np.array(dataset.train.y))


def plain(model: nn.Module, dataset: PreparedDataset) -> Slice:
    """Return slices over float32 tensors in memory, permuted once an epoch."""
    x_all, y_all = in_memory(dataset)
    step = stepper(model)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            order = torch.randperm(len(x_all))
            x, y = x_all[order], y_all[order]
            for start in range(0, len(x) - 63, 64):
                yield x[start : start + 64], y[start : start + 64]

    return _slices(batches(), step)


def torchvision_mnist(data_dir: Path) -> Examples:
    """Return MNIST as torchvision gives it, transformed example by example."""
    from torchvision import datasets, transforms

    transform = transforms.Compose(
        [transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))]
    )
    found: Examples = datasets.MNIST(str(data_dir), train=True, transform=transform)
    return found


def loader(model: nn.Module, examples: Examples) -> Slice:
    """Return slices over examples through a DataLoader."""

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield from torch.utils.data.DataLoader(
                examples, batch_size=64, shuffle=True, drop_last=True
            )

    return _slices(batches(), stepper(model))


def _slices(
    batches: Iterator[tuple[Tensor, Tensor]], step: Callable[[Tensor, Tensor], None]
) -> Slice:
    def run() -> None:
        for _ in range(STEPS):
            step(*next(batches))

    return run


def measured(contenders: dict[str, Slice], slices: int) -> list[Row]:
    """Let contenders take turns; return samples a second and the ratios to the yardsticks."""
    for run in contenders.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(slices):
        for name, run in contenders.items():
            started = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - started)
    return [
        {
            "contender": name,
            "samples_a_second": STEPS * 64 / statistics.median(taken),
            **{
                f"times_{rival}": statistics.median(
                    r / t for r, t in zip(seconds[rival], taken, strict=True)
                )
                for rival in ("plain", "loader")
                if rival in seconds
            },
        }
        for name, taken in seconds.items()
    ]


def contenders_on(
    name: str, plain_model: nn.Module, datasets_root: Path, data_dir: Path | None
) -> dict[str, Slice]:
    """Return the contenders for a dataset and its network."""
    spec = Spec.make({**SGD, "dataset": name, "model": f"{name}-cnn"})
    dataset = open_prepared(datasets_root, prepare(spec, datasets_root, data_dir))
    if name == "mnist" and data_dir is not None:
        examples = torchvision_mnist(data_dir)
    else:
        examples = torch.utils.data.TensorDataset(*in_memory(dataset))  # type: ignore[assignment]
    return {
        "float32": ours(spec, dataset),
        "bfloat16": ours(spec.replace(precision="bfloat16"), dataset),
        "plain": plain(plain_model, dataset),
        "loader": loader(type(plain_model)(), examples),
    }


def main() -> None:
    """Measure and print."""
    parser = command_line(__doc__)
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("DOWNPOUR_DATA"))
    parser.add_argument("--slices", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    networks: dict[str, nn.Module] = {"digits": PlainDigits()}
    if options.data_dir:
        networks["mnist"] = PlainMnist()
    for name, network in networks.items():
        factor = 10 if name == "digits" else 1
        with tempfile.TemporaryDirectory() as folder:
            contenders = contenders_on(name, network, Path(folder), options.data_dir)
            found = measured(contenders, options.slices * factor)
        rows += [{"dataset": name, **row} for row in found]
    show(rows, as_json=options.json)


if __name__ == "__main__":
    main()
