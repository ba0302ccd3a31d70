"""The work that people bring: a plain script beside one worker and two, in turns.

    python benchmarks/real_work.py --loaders 2 --turns 3
    python benchmarks/real_work.py --jobs photos words --accelerator --loaders 14

There are two jobs. `photos` trains a ResNet on folders of JPEGs, each of which a step crops and
mirrors at random. `words` trains a GPT-2 of transformers' with AdamW. The plain script is what
people write: torch's `DataLoader` with the same number of processes, and no Downpour. All train the
same task's network, examples and loss.

A figure is examples per second, from the second epoch on: the start of a process is left out. The
time of a run ends when the manager assigns the first task of the last round, so updates, averages
and reports count. `steps_alone` counts only the seconds in which workers train. The ways take
turns, and the table gives the medians of all turns.

The defaults suit two cores. `--accelerator` takes the sizes that people train on one: a ResNet-50
on 224 pixels and GPT-2 with 124 M parameters, in bfloat16, on the best device.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import tomli_w
from common import Row, command_line, show
from PIL import Image

from downpour.learning.accelerators import devices_here
from downpour.record.record import read_record
from downpour.record.record_lines import AssignedLine, UpdatedLine

CLASSES = 10

TASKS = {
    "photos": """
import os, torch, torchvision
from torch import nn
from downpour import Task, data

class Photos(Task):
    def __init__(self, root, network, side):
        self.root, self.network, self.side = root, network, side
    def model(self):
        return getattr(torchvision.models, self.network)(num_classes=10)
    def examples(self, part):
        steps = [f"RandomResizedCrop({self.side})", "RandomHorizontalFlip()",
                 "ToDtype('float32', scale=True)"]
        return data.ImageFolder(os.path.join(self.root, part), cache_megabytes=0,
                                transform=data.transforms(steps))
    def loss(self, model, batch):
        x, y = batch
        return nn.functional.cross_entropy(model(x), y)
""",
    "words": """
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel
from downpour import Task

class Words(Task):
    def __init__(self, count, vocabulary, width, layers, tokens):
        self.count, self.tokens = count, tokens
        ends = {"bos_token_id": 0, "eos_token_id": 0, "use_cache": False}
        self.config = GPT2Config(vocab_size=vocabulary, n_embd=width, n_layer=layers,
                                 n_head=width // 64, n_positions=tokens, **ends)
    def model(self):
        return GPT2LMHeadModel(self.config)
    def examples(self, part):
        count = self.count if part == "train" else 8
        seed = torch.Generator().manual_seed(len(part))
        drawn = torch.randint(0, self.config.vocab_size, (count, self.tokens + 1), generator=seed)
        return TensorDataset(drawn[:, :-1], drawn[:, 1:])
    def loss(self, model, batch):
        logits = model(input_ids=batch[0]).logits
        return cross_entropy(logits.flatten(0, 1).float(), batch[1].flatten())
""",
}

PLAIN = """
import json, os, sys, time, torch
sys.path.insert(0, os.getcwd())
from importlib import import_module
from torch.utils.data import DataLoader
job = json.loads(sys.argv[1])
torch.set_num_threads(job["threads"])
torch.manual_seed(0)
module, name = job["task"].split(":")
task, device = getattr(import_module(module), name)(**job["task_options"]), job["device"]
model, examples = task.model().to(device), task.examples("train")
loaders = job["loaders"]
loader = DataLoader(examples, batch_size=job["batch_size"], shuffle=True, num_workers=loaders,
                    persistent_workers=loaders > 0, pin_memory=device != "cpu")
if job["optimizer"] == "adamw":
    optimizer = torch.optim.AdamW(model.parameters(), lr=job["learning_rate"])
else:
    optimizer = torch.optim.SGD(model.parameters(), lr=job["learning_rate"], momentum=0.9)
half = job["precision"] == "bfloat16"
model.train()
for _ in range(job["epochs"]):
    began = time.perf_counter()
    for batch in loader:
        batch = [part.to(device, non_blocking=True) for part in batch]
        optimizer.zero_grad()
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=half):
            loss = task.loss(model, batch)
        loss.backward()
        optimizer.step()
    loss.item()  # waits until all is computed
    print(time.perf_counter() - began, flush=True)
"""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training, by fields of a spec that the plain script takes, too."""

    task: str
    task_options: dict[str, object]
    examples: int
    batch_size: int
    optimizer: str
    learning_rate: float
    epochs: int
    precision: str = "float32"
    device: str = "cpu"
    threads: int = 1


def jobs(options: argparse.Namespace, device: str) -> dict[str, Job]:
    """Return the jobs in the sizes asked for; their folder is the working directory."""
    large = options.accelerator
    photos: dict[str, object] = {"root": ".", "network": "resnet50" if large else "resnet18"}
    photos |= {"side": 224 if large else 64}
    words: dict[str, object] = {"vocabulary": 50257, "width": 768, "layers": 12, "tokens": 1024}
    if not large:
        words = {"vocabulary": 5000, "width": 256, "layers": 4, "tokens": 64}
    batch = 8
    precision = "bfloat16" if large else "float32"
    return {
        "photos": Job(
            task="photos:Photos",
            task_options=photos,
            examples=options.images,
            batch_size=128 if large else 32,
            optimizer="sgd",
            learning_rate=0.05,
            epochs=options.epochs,
            precision=precision,
            device=device,
            threads=options.threads,
        ),
        "words": Job(
            task="words:Words",
            task_options={"count": options.steps * batch, **words},
            examples=options.steps * batch,
            batch_size=batch,
            optimizer="adamw",
            learning_rate=3e-4,
            epochs=options.epochs,
            precision=precision,
            device=device,
            threads=2 * options.threads,
        ),
    }


def draw(folder: Path, images: int, side: int) -> None:
    """Write JPEGs of noise and blocks in ten classes; a side is 1.5 times as long as the crop's."""
    random = np.random.default_rng(0)
    block = side * 3 // 24
    for part, count in (("train", images), ("test", 20)):
        for number in range(count):
            place = folder / part / str(number % CLASSES)
            place.mkdir(parents=True, exist_ok=True)
            coarse = random.integers(0, 256, (12, 12, 3), dtype=np.uint8)
            large = np.kron(coarse, np.ones((block, block, 1), dtype=np.uint8))
            noisy = np.clip(large + random.normal(0, 12, large.shape), 0, 255).astype(np.uint8)
            Image.fromarray(noisy).save(place / f"{number}.jpg", quality=90)


def plain(folder: Path, job: Job, loaders: int) -> Row:
    """Return the examples per second of the plain script."""
    words = [sys.executable, "plain.py", json.dumps({**asdict(job), "loaders": loaders})]
    run = subprocess.run(words, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    seconds = [float(line) for line in run.stdout.split()][1:]
    return {"examples_per_second": job.examples * len(seconds) / sum(seconds)}


def with_workers(folder: Path, job: Job, workers: int, loaders: str, meet: int) -> Row:
    """Return the examples per second of a run, and of its steps alone in all workers."""
    fields = {name: value for name, value in asdict(job).items() if name != "examples"}
    if job.optimizer == "sgd":
        fields |= {"momentum": 0.9}
    spec = {**fields, "shards": workers, "meet": meet, "evaluate_every": 0}
    (folder / "spec.toml").write_text(tomli_w.dumps(spec))
    with tempfile.TemporaryDirectory(dir=folder) as shared:
        words = [
            *(sys.executable, "-m", "downpour", "run", "spec.toml", "--workers", str(workers)),
            *("--loaders", loaders, "--json", "--shared", shared),
        ]
        subprocess.run(words, cwd=folder, stdout=subprocess.DEVNULL, check=True)
        (record,) = Path(shared).glob("experiments/*/record.jsonl")
        story = list(read_record(record))
    begun: dict[int, float] = {}
    for at, line in story:
        if isinstance(line, AssignedLine):
            begun.setdefault(line.round, at)
    counted = range(meet, max(begun))
    each = job.examples / meet
    trained = [
        (line.samples, line.train_seconds)
        for _, line in story
        if isinstance(line, UpdatedLine) and line.round in counted
    ]
    samples, seconds = (sum(column) for column in zip(*trained, strict=True))
    return {
        "examples_per_second": each * len(counted) / (begun[max(begun)] - begun[meet]),
        "steps_alone": samples * workers / seconds,
    }


def ways_of(
    name: str, folder: Path, job: Job, loaders: int
) -> Iterator[tuple[str, Callable[[], Row]]]:
    """Yield the ways to train a job; the first is the plain script."""

    def run(workers: int, its: str, meet: int = 1, threads: int = job.threads) -> Callable[[], Row]:
        return lambda: with_workers(folder, replace(job, threads=threads), workers, its, meet)

    if name == "words":  # loaders would read rows of one tensor
        yield "plain script", lambda: plain(folder, job, 0)
        yield "one worker", run(1, "0")
        # Two workers share a card, or the threads.
        yield "two workers, two meetings", run(2, "0", 2, job.threads // 2)
        return
    yield f"plain script, {loaders} loaders", lambda: plain(folder, job, loaders)
    yield "one worker, no loaders", run(1, "0")
    yield "one worker, auto", run(1, "auto")
    yield f"one worker, {loaders} loaders", run(1, str(loaders))
    yield "two workers, auto", run(2, "auto")


def measured(name: str, job: Job, options: argparse.Namespace) -> list[Row]:
    """Return a row for each way, with the medians of its speeds and of its ratios in each turn."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if name == "photos":
            draw(folder, job.examples, int(str(job.task_options["side"])))
            job = replace(job, task_options={**job.task_options, "root": scratch})
        (folder / f"{name}.py").write_text(TASKS[name])
        (folder / "plain.py").write_text(PLAIN)
        ways = dict(ways_of(name, folder, job, options.loaders))
        turns = [{way: run() for way, run in ways.items()} for _ in range(options.turns)]
    first = next(iter(ways))
    rows: list[Row] = []
    for way in ways:
        row: Row = {"job": name, "way": way}
        for column in turns[0][way]:
            figures = [float(str(turn[way][column])) for turn in turns]
            scripts = [float(str(turn[first]["examples_per_second"])) for turn in turns]
            ratios = [own / script for own, script in zip(figures, scripts, strict=True)]
            ratio = "ratio" if column == "examples_per_second" else f"{column}_ratio"
            row |= {column: statistics.median(figures), ratio: statistics.median(ratios)}
        rows.append(row)
    return rows


def main() -> None:
    """Measure, and show a table."""
    parser = command_line(__doc__)
    parser.add_argument("--jobs", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--accelerator", action="store_true", help="large, on the best device")
    parser.add_argument("--images", type=int, default=1600)
    parser.add_argument("--steps", type=int, default=100, help="of words in an epoch")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--loaders", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    device = devices_here().chosen("auto") if options.accelerator else "cpu"
    chosen = jobs(options, device)
    rows = [row for name in options.jobs for row in measured(name, chosen[name], options)]
    show(rows, as_json=options.json)


if __name__ == "__main__":
    main()
