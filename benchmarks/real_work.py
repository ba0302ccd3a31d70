"""Photographs: a plain script with loaders beside one worker, and beside two, in turns.

    python benchmarks/real_work.py --loaders 2 --turns 3

A ResNet-18 is trained on folders of JPEGs that this script draws, 96 x 96 pixels large, of which
each step crops and mirrors 64 x 64 at random. The plain script is what people write: torch's
`DataLoader` with the same number of processes, SGD with momentum, no Downpour. A figure is images
per second in the epochs after the first, so neither side's start counts. A run's seconds are those
from a round's first assignment to its last update. The ways take turns, and the table gives the
medians of all turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tomli_w
from common import Row, command_line, show
from PIL import Image

CLASSES = 10
BATCH = 32

TASK = """
import os, torch
from torch import nn
from torchvision.models import resnet18
from downpour import Task, data

class Photos(Task):
    def __init__(self, root, side):
        self.root, self.side = root, side
    def model(self):
        return resnet18(num_classes=10)
    def examples(self, part):
        steps = [f"RandomResizedCrop({self.side})", "RandomHorizontalFlip()",
                 "ToDtype('float32', scale=True)"]
        return data.ImageFolder(os.path.join(self.root, part), cache_megabytes=0,
                                transform=data.transforms(steps))
    def loss(self, model, batch):
        x, y = batch
        return nn.functional.cross_entropy(model(x), y)
"""

PLAIN = """
import os, sys, time, torch
sys.path.insert(0, os.getcwd())
from torch import nn
from torch.utils.data import DataLoader
from photos import Photos
root, side, epochs, loaders, threads = sys.argv[1], *map(int, sys.argv[2:])
torch.set_num_threads(threads)
torch.manual_seed(0)
task = Photos(root, side)
model, examples = task.model(), task.examples("train")
loader = DataLoader(examples, batch_size=32, shuffle=True, num_workers=loaders,
                    persistent_workers=loaders > 0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
model.train()
for _ in range(epochs):
    began = time.perf_counter()
    for batch in loader:
        optimizer.zero_grad()
        task.loss(model, batch).backward()
        optimizer.step()
    print(time.perf_counter() - began, flush=True)
"""


def draw(folder: Path, images: int) -> None:
    """Write JPEGs of noise and blocks, 96 x 96 pixels, in folders of ten classes."""
    random = np.random.default_rng(0)
    for part, count in (("train", images), ("test", 20)):
        for number in range(count):
            place = folder / part / str(number % CLASSES)
            place.mkdir(parents=True, exist_ok=True)
            coarse = random.integers(0, 256, (12, 12, 3), dtype=np.uint8)
            large = np.kron(coarse, np.ones((8, 8, 1), dtype=np.uint8))
            noisy = np.clip(large + random.normal(0, 12, large.shape), 0, 255).astype(np.uint8)
            Image.fromarray(noisy).save(place / f"{number}.jpg", quality=90)


def plain(folder: Path, options: argparse.Namespace) -> float:
    """Return the images per second of the plain script."""
    numbers = options.side, options.epochs, options.loaders, options.threads
    words = [sys.executable, "plain.py", str(folder), *map(str, numbers)]
    run = subprocess.run(words, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    seconds = [float(line) for line in run.stdout.split()]
    return float(options.images * (len(seconds) - 1) / sum(seconds[1:]))


def with_workers(folder: Path, options: argparse.Namespace, workers: int, loaders: str) -> float:
    """Return the images per second of a run, with `loaders` for each worker."""
    spec = {
        "task": "photos:Photos",
        "task_options": {"root": str(folder), "side": options.side},
        "shards": workers,
        "epochs": options.epochs,
        "batch_size": BATCH,
        "learning_rate": 0.05,
        "momentum": 0.9,
        "threads": options.threads,
        "evaluate_every": 0,
    }
    (folder / "spec.toml").write_text(tomli_w.dumps(spec))
    with tempfile.TemporaryDirectory(dir=folder) as shared:
        words = [
            *(sys.executable, "-m", "downpour", "run", "spec.toml", "--workers", str(workers)),
            *("--loaders", loaders, "--json", "--shared", shared),
        ]
        run = subprocess.run(words, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    seconds = [one["train_seconds"] for one in json.loads(run.stdout)["rounds"][1:]]
    return float(options.images * len(seconds) / sum(seconds))


def measured(options: argparse.Namespace) -> list[Row]:
    """Return a row for each way, with the medians of its speed and of its ratio in each turn."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        draw(folder, options.images)
        (folder / "photos.py").write_text(TASK)
        (folder / "plain.py").write_text(PLAIN)
        ways: dict[str, Callable[[], float]] = {
            f"plain script, {options.loaders} loaders": lambda: plain(folder, options),
            "one worker, no loaders": lambda: with_workers(folder, options, 1, "0"),
            "one worker, auto": lambda: with_workers(folder, options, 1, "auto"),
            f"one worker, {options.loaders} loaders": lambda: with_workers(
                folder, options, 1, str(options.loaders)
            ),
            "two workers, auto": lambda: with_workers(folder, options, 2, "auto"),
        }
        turns = [{name: run() for name, run in ways.items()} for _ in range(options.turns)]
    first = next(iter(ways))
    return [
        {
            "way": name,
            "images_per_second": statistics.median(turn[name] for turn in turns),
            "ratio": statistics.median(turn[name] / turn[first] for turn in turns),
        }
        for name in ways
    ]


def main() -> None:
    """Measure, and show a table."""
    parser = command_line(__doc__)
    parser.add_argument("--images", type=int, default=1600)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--loaders", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    show(measured(options), as_json=options.json)


if __name__ == "__main__":
    main()
