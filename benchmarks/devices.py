"""Seconds an epoch of one worker's loop on the processor and on the accelerator, and its peer's.

The peer is a plain PyTorch loop on the same accelerator: all examples lie in the device's memory as
float32, and nothing repeats its bytes. Ours lie there as bytes, and are normalized there. Both
train the same network with SGD on batches of 128, in the default precision, and take turns; the
ratio is the median of turns, and 1 means as fast as the peer. `repeatable` false leaves out what
makes the bytes repeat. Of `spilling`, what the backward pass needs waits in the host's memory, as
after a lack of memory. `auto` takes the best accelerator; without one, one line says so.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from common import Row, command_line, show
from torch import Tensor
from torch.nn import functional

from downpour.core.spec import Spec
from downpour.learning.accelerators import card_of, devices_here
from downpour.learning.datasets import PreparedDataset, open_prepared, prepare
from downpour.learning.tasks.loaded import LoadedTask, load
from downpour.learning.training.loop import LocalTask, ShardTraining

Epoch = Callable[[], None]

BATCH = 128
STEPS = 8
NETWORKS: dict[str, dict[str, object]] = {
    "mnist-cnn": {"model": "mnist-cnn"},
    "resnet18": {"model": "resnet18", "channels_last": False},
}


def prepared(folder: Path, examples: int) -> PreparedDataset:
    """Return random images of 32 x 32 in ten classes."""
    generator = np.random.default_rng(1)
    x = generator.integers(0, 256, (examples, 32, 32, 3), dtype=np.uint8)
    y = np.arange(examples) % 10
    np.savez(folder / "set.npz", x=x, y=y, x_test=x[:100], y_test=y[:100])
    spec = Spec.make({"dataset": "npz", "data_path": str(folder / "set.npz")})
    return open_prepared(folder, prepare(spec, folder))


def ours(spec: Spec, dataset: PreparedDataset, *, spills: bool = False) -> Epoch:
    """Return epochs of a worker's loop, some steps at a time, as a worker takes short ones."""
    loaded = load(spec, dataset)
    model = loaded.network()
    indices = np.arange(dataset.facts.train_samples)

    def epoch() -> None:
        task = LocalTask(indices=indices, round=0, shard=0)
        training = ShardTraining(loaded, model, task, spills=spills)
        while training.steps_done < training.steps_total:
            training.advance(STEPS)

    return epoch


def plain(loaded: LoadedTask, dataset: PreparedDataset, device: str) -> Epoch:
    """Return epochs of the plainest loop, over examples that lie on the device."""
    model = loaded.network().to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x, y = (one.to(device) for one in _floats(dataset))

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(x), device=device)
        for start in range(0, len(x), BATCH):
            chosen = order[start : start + BATCH]
            yield x[chosen], y[chosen]

    def epoch() -> None:
        loss = torch.zeros((), device=device)
        for some, labels in batches():
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(some), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        loss.item()  # waits until all is computed

    return epoch


def _floats(dataset: PreparedDataset) -> tuple[Tensor, Tensor]:
    dataset.train.verify(None)
    raw = torch.from_numpy(dataset.train.x.astype(np.float32)).permute(0, 3, 1, 2).contiguous()
    mean, std = (torch.from_numpy(v).float()[:, None, None] for v in (dataset.mean, dataset.std))
    return (raw - mean) / std, torch.from_numpy(np.array(dataset.train.y))


def measured(contenders: dict[str, Epoch], turns: int) -> dict[str, list[float]]:
    """Let contenders take turns, after one that is not counted; return the seconds of each."""
    for run in contenders.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(turns):
        for name, run in contenders.items():
            began = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - began)
    return seconds


def rows_of(name: str, seconds: dict[str, list[float]], examples: int, where: str) -> list[Row]:
    """Return a row for each contender, with the ratio to the peer."""
    return [
        {
            "network": name,
            "contender": contender,
            "seconds": statistics.median(taken),
            "examples_a_second": examples / statistics.median(taken),
            "times_plain": statistics.median(
                rival / own for rival, own in zip(seconds["plain"], taken, strict=True)
            ),
            "where": where,
        }
        for contender, taken in seconds.items()
    ]


def compared(name: str, dataset: PreparedDataset, device: str, turns: int) -> list[Row]:
    """Measure one network on the accelerator."""
    fields = {**NETWORKS[name], "batch_size": BATCH, "learning_rate": 0.01, "momentum": 0.9}
    spec = Spec.make({**fields, "device": device})
    contenders = {
        "plain": plain(load(spec, dataset), dataset, device),
        "ours": ours(spec, dataset),
        "repeatable false": ours(spec.replace(repeatable=False), dataset),
        "bfloat16": ours(spec.replace(precision="bfloat16"), dataset),
        "spilling": ours(spec, dataset, spills=True),
    }
    where = ", ".join([f"torch {torch.__version__}", *card_of(device)])
    return rows_of(name, measured(contenders, turns), dataset.facts.train_samples, where)


def on_processor(name: str, folder: Path, examples: int, threads: int) -> Row:
    """Measure an epoch of fewer examples on the processor, and say what all would take."""
    few = max(BATCH, examples // 16)
    folder = folder / "few"
    folder.mkdir(exist_ok=True)
    dataset = prepared(folder, few)
    fields = {**NETWORKS[name], "batch_size": BATCH, "learning_rate": 0.01, "momentum": 0.9}
    run = ours(Spec.make({**fields, "threads": threads}), dataset)
    seconds = statistics.median(measured({"cpu": run}, 1)["cpu"]) * examples / few
    return {
        "network": name,
        "contender": f"ours, cpu, {threads} threads",
        "seconds": seconds,
        "examples_a_second": examples / seconds,
    }


def main() -> None:
    """Measure and print."""
    parser = command_line(__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--examples", type=int, default=8192)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", type=int, default=8, help="of the processor's epochs")
    options = parser.parse_args()
    here = devices_here()
    if not here.accelerators:
        note = "no accelerator here"
        show([{"skipped": note}], as_json=True) if options.json else print(note)
        return
    device = here.chosen(options.device)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        dataset = prepared(Path(folder), options.examples)
        for name in NETWORKS:
            rows += compared(name, dataset, device, options.turns)
            rows.append(on_processor(name, Path(folder), options.examples, options.threads))
    show(rows, as_json=options.json)


if __name__ == "__main__":
    main()
