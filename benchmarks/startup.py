"""Seconds from the command to the first batch: `downpour run` as a process, with 2 and 10 workers.

The clock starts when the process is started. The first batch has been trained when some worker has
done its first step: the record says when each task was assigned, how long its worker took to load
and, as only one step is asked for, to train. The record counts from the manager's own zero; it is
tied to this clock by the moment its first line appears in the shared directory, which is looked at
every two milliseconds.

Columns are seconds since the start, in the order in which things happen: `launched` (Python, the
command's imports, the spec), `manager` (the fork server has imported torch and the manager
serves), `submitted`, `dataset` (decoded or found, cut, the first model published), `joined` (the
first worker; workers are forked when their part of the imports is done), `assigned`, `first_batch`
(limits: 6 s with 2 workers, 8 s with 10). `cpu_seconds` is the processor time of the whole run
with all its processes; unlike the others it means something on a busy machine, too.

With `--task`, the training is a small GPT-2 of transformers', and a plain script takes turns with
`downpour run`: its row has the seconds from its start to the end of its first step.

MNIST is measured where `--data-dir` or DOWNPOUR_DATA names a folder that has it, else the digits;
each once with a new shared directory and once with the dataset prepared.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from common import Row, command_line, show

from downpour.record.record import read_record
from downpour.record.record_lines import (
    AssignedLine,
    PreparedLine,
    RecordLine,
    UpdatedLine,
    WorkerJoinedLine,
)

LOOK_SECONDS = 0.002
LIMITS_SECONDS = {2: 6.0, 10: 8.0}

# What appears in the shared directory, and what that means.
SIGNS = {
    "launched": "logs/*",
    "manager": "presence/*",
    "submitted": "experiments/*/journal-*.jsonl",
}


TASK = """
import torch
from torch.nn.functional import cross_entropy
from transformers import GPT2Config, GPT2LMHeadModel
from downpour import Task

class Words(Task):
    def model(self):
        ends = {"bos_token_id": 0, "eos_token_id": 0}
        sizes = {"vocab_size": 5000, "n_embd": 256, "n_layer": 4, "n_head": 4, "n_positions": 64}
        return GPT2LMHeadModel(GPT2Config(**sizes, **ends))

    def examples(self, part):
        drawn = torch.randint(0, 5000, (64, 65), generator=torch.Generator().manual_seed(0))
        return torch.utils.data.TensorDataset(drawn[:, :-1], drawn[:, 1:])

    def loss(self, model, batch):
        return cross_entropy(model(input_ids=batch[0]).logits.flatten(0, 1), batch[1].flatten())
"""
PLAIN = """
import torch
from words import Words
task = Words()
model, examples = task.model(), task.examples("train")
optimizer = torch.optim.AdamW(model.parameters())
batch = next(iter(torch.utils.data.DataLoader(examples, batch_size=8, shuffle=True)))
task.loss(model, batch).backward()
optimizer.step()
print("stepped", flush=True)
"""


def plain(folder: Path) -> float:
    """Return the seconds that a plain script takes to its first step."""
    (folder / "words.py").write_text(TASK)
    (folder / "plain.py").write_text(PLAIN)
    began, out, errors = time.monotonic(), subprocess.PIPE, subprocess.DEVNULL
    command = [sys.executable, "plain.py"]
    with subprocess.Popen(command, cwd=folder, stdout=out, stderr=errors) as script:
        if not (script.stdout and script.stdout.readline()):
            raise SystemExit("the plain script failed")
        return time.monotonic() - began  # its end is no part of it


def of_dataset(dataset: str, data_dir: str | None) -> list[str]:
    """Return the options of a training of one of Downpour's networks."""
    options = ["--dataset", dataset, "--model", f"{dataset}-cnn", "--epochs", "1"]
    return options + (["--data-dir", data_dir] if data_dir else [])


OF_TASK = [
    *("--task", "words:Words", "--allow", "words", "--epochs", "1"),
    *("--optimizer", "adamw", "--batch-size", "8"),
]


def start(
    workers: int, options: list[str], shared: Path, folder: Path | None = None
) -> dict[str, float]:
    """Run once; returns seconds since the start by milestone, and the processor seconds."""
    command = [sys.executable, "-m", "downpour", "run", "--workers", str(workers), "--json"]
    command += ["--local-steps", "1", "--evaluate-every", "0", "--shared", str(shared), *options]
    signs = *SIGNS.values(), "experiments/*/spec.toml"
    old = {path for sign in signs for path in shared.glob(sign)}
    spent, began = _children_seconds(), time.monotonic()
    found: dict[str, float] = {}
    out, errors = subprocess.DEVNULL, subprocess.PIPE
    with subprocess.Popen(command, cwd=folder, stdout=out, stderr=errors) as process:
        for name, sign in SIGNS.items():
            while process.poll() is None and not _has_news(shared, sign, old):
                time.sleep(LOOK_SECONDS)
            found[name] = time.monotonic() - began
        _, complaint = process.communicate()
    if process.returncode:
        raise SystemExit(complaint.decode())
    spec = next(path for path in shared.glob("experiments/*/spec.toml") if path not in old)
    found |= milestones(read_record(spec.with_name("record.jsonl")), found["submitted"])
    return {**found, "cpu_seconds": _children_seconds() - spent}


def milestones(record: Iterable[tuple[float, RecordLine]], submitted: float) -> dict[str, float]:
    """Return what the record tells, in seconds of the clock by which it began at `submitted`."""
    story = list(record)
    zero = story[0][0] - submitted

    def first(kind: type[RecordLine]) -> float:
        return next((at for at, fact in story if isinstance(fact, kind)), float("nan")) - zero

    assigned = {
        (fact.shard, fact.attempt): at for at, fact in story if isinstance(fact, AssignedLine)
    }
    batches = [
        assigned[fact.shard, fact.attempt] + fact.load_seconds + fact.train_seconds
        for _, fact in story
        if isinstance(fact, UpdatedLine)
    ]
    return {
        "dataset": first(PreparedLine),
        "joined": first(WorkerJoinedLine),
        "assigned": first(AssignedLine),
        "first_batch": min(batches) - zero,
    }


def measure(options: argparse.Namespace) -> list[Row]:
    """Return a row for each number of workers, with and without a prepared dataset."""
    dataset = "mnist" if options.data_dir else "digits"
    rows: list[Row] = []
    for workers in options.workers:
        runs: dict[str, list[dict[str, float]]] = {"no": [], "yes": []}
        for _ in range(options.repeats):
            with tempfile.TemporaryDirectory() as folder:
                for each in runs.values():
                    shared = Path(folder) / "shared"
                    each.append(start(workers, of_dataset(dataset, options.data_dir), shared))
        for prepared, each in runs.items():
            medians = {name: statistics.median(run[name] for run in each) for name in each[0]}
            head: Row = {"dataset_name": dataset, "workers": workers, "prepared": prepared}
            rows.append({**head, **medians, "limit_seconds": LIMITS_SECONDS.get(workers, "")})
    return rows


def measure_task(options: argparse.Namespace) -> list[Row]:
    """Return a row for the plain script, and one for each number of workers."""
    runs: dict[int, list[dict[str, float]]] = {workers: [] for workers in options.workers}
    scripts: list[float] = []
    for _ in range(options.repeats):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            scripts.append(plain(folder))
            for workers, each in runs.items():
                each.append(start(workers, OF_TASK, folder / f"shared-{workers}", folder))
    alone = statistics.median(scripts)
    rows: list[Row] = [{"way": "plain script", "first_batch": alone, "ratio": 1.0}]
    for workers, each in runs.items():
        medians = {name: statistics.median(run[name] for run in each) for name in each[0]}
        ratio = medians["first_batch"] / alone
        rows.append({"way": f"run, {workers} workers", **medians, "ratio": ratio})
    return rows


def _has_news(shared: Path, sign: str, old: set[Path]) -> bool:
    """Whether something new is there, with content where it is a record."""
    new = (path for path in shared.glob(sign) if path not in old)
    return any(path.suffix != ".jsonl" or path.stat().st_size for path in new)


def _children_seconds() -> float:
    """Return the processor seconds of all processes that this one has waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Measure and print."""
    parser = command_line(__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=list(LIMITS_SECONDS))
    parser.add_argument("--repeats", type=int, default=3, help="runs; their median is shown")
    parser.add_argument("--data-dir", default=os.environ.get("DOWNPOUR_DATA"))
    parser.add_argument("--task", action="store_true", help="a task that imports transformers")
    options = parser.parse_args()
    show((measure_task if options.task else measure)(options), as_json=options.json)


if __name__ == "__main__":
    main()
