"""What the defaults are worth: plain settings, `auto`, and the best that a small search finds.

Each task is trained in virtual time (`virtual_training`) by equally fast workers, with the random
and the class split. The rule of `core/resolve.py` was made from the first three tasks, and the
others check it. `plain` resets the optimizer's state and has no outer optimizer. The search tries
both states with six outer momentums. Each run adds a line of JSON to the file, and those that are
there are not run again. DOWNPOUR_DATA names a folder with MNIST and PneumoniaMNIST.

PneumoniaMNIST is there twice. A network that fits its training part better is not better on its own
test part: one process, trained for ten epochs, goes up and down there between 69 and 88 %. So it is
also tested on X-rays that are set apart from the training part.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from common import Row, command_line, keep_run, kept_runs, show
from virtual_training import Cost, train

from downpour.base.errors import NonFinite, SpecError
from downpour.core.spec import Spec

Record = dict[str, Any]
Wanted = tuple[tuple[str, int, str], str, Mapping[str, Any], int]
_CELL = ("task", "workers", "split")
_MNIST = {"dataset": "mnist", "train_limit": 3000, "test_limit": 2000, "epochs": 3}
_LONG = {"epochs": 4, "batch_size": 32}
_XRAYS = {
    "dataset": "npz",
    "model": "lenet:build",
    "momentum": 0.5,
    "learning_rate": 0.1,
    "batch_size": 16,
}
_OFFICIAL, _APART = "pneumoniamnist/pneumoniamnist.npz", "xrays-apart.npz"
TASKS: Mapping[str, Mapping[str, Any]] = {
    "digits": {"momentum": 0.5, "epochs": 8},
    "digits-mlp": {"model": "mlp", "momentum": 0.5, "epochs": 8},
    "mnist-lenet": {**_MNIST, "model": "lenet:build", "momentum": 0.5},
    "digits, momentum 0.9": {"epochs": 8},
    "fewer digits, momentum 0": {"momentum": 0.0, "train_limit": 700, "learning_rate": 0.2},
    "mnist-lenet, momentum 0.9": {**_MNIST, "model": "lenet:build"},
    "mnist-mlp, momentum 0.7": {**_MNIST, "model": "mlp", "momentum": 0.7},
    "digits, adam": {"optimizer": "adam", "learning_rate": 0.003},
    "xrays": {**_XRAYS, "data_path": _APART},
    "xrays, rate 0.03": {**_XRAYS, "data_path": _APART, "learning_rate": 0.03},
    "xrays, their own test part": {**_XRAYS, "data_path": _OFFICIAL, "train_limit": 2000},
    "diabetes": {
        "task": "diabetes:Diabetes",
        "epochs": 10,
        "batch_size": 16,
        "learning_rate": 0.01,
    },
    "shapes": {"task": "shapes:Segmentation", "optimizer": "adam", "learning_rate": 0.01},
    "vae": {
        "task": "vae:Digits",
        "train_limit": 3000,
        "test_limit": 1000,
        "optimizer": "adam",
        "learning_rate": 0.001,
        "batch_size": 64,
    },
    "character gpt": {
        "task": "char_gpt:CharGPT",
        "optimizer": "adamw",
        "learning_rate": 0.003,
        **_LONG,
        "clip_norm": 1.0,
    },
    "word lstm": {
        "task": "word_lstm:Words",
        "epochs": 2,
        "batch_size": 20,
        "learning_rate": 2.0,
        "momentum": 0.0,
        "clip_norm": 0.25,
    },
}
_AUTO: Mapping[str, Any] = {"optimizer_state": "auto", "outer": "auto"}
_PLAIN: Mapping[str, Any] = {"optimizer_state": "reset", "outer": "none"}
_SEARCHED: Mapping[str, Mapping[str, Any]] = {
    f"{state}, {momentum}": {
        "optimizer_state": state,
        "outer": {"optimizer": "nesterov", "momentum": momentum} if momentum else "none",
    }
    for state, momentum in product(("reset", "keep"), (0.0, 0.3, 0.5, 0.65, 0.8, 0.9))
}
_FURTHER: Mapping[str, Mapping[str, Any]] = {
    "auto, 1 meeting": {"meet": 1},
    "auto, 4 meetings": {"meet": 4},
    "auto, rises and falls": {"warmup": 0.1, "schedule": "linear", "final_rate": 0.1},
    "auto, scaled rate": {"scale_rate": True, "warmup": 0.1},
}
"""What `auto` could decide on as well."""
_WITHOUT_CLASSES = {"diabetes", "shapes", "vae", "character gpt", "word lstm"}
_STEP_SECONDS = 0.024
_DIVERGED = 1e9
"""The loss of a training that had none at its end."""


def cells(tasks: Sequence[str], workers: Sequence[int]) -> Iterator[tuple[str, int, str]]:
    """Yield (task, workers, split)."""
    for task, count in product(tasks, workers):
        yield task, count, "random"
        if count > 1 and task not in _WITHOUT_CLASSES:
            yield task, count, "class"


def set_apart(data: Path, folder: Path) -> None:
    """Write PneumoniaMNIST with a test part from its training part, a quarter of it."""
    with np.load(data / _OFFICIAL) as arrays:
        images, labels = arrays["train_images"], arrays["train_labels"][:, 0]
    order = np.random.default_rng(0).permutation(len(images))
    test, train = np.split(order, [len(order) // 4])
    parts = {"x": images[train], "y": labels[train], "x_test": images[test], "y_test": labels[test]}
    np.savez(folder / _APART, **parts)


def trained(
    cell: tuple[str, int, str],
    own: Mapping[str, Any],
    seed: int,
    data: Path | None,
    apart: Path,
) -> Record:
    """Train once; returns the loss at the end, and the accuracy where there is one."""
    task, workers, split = cell
    fields = dict(TASKS[task])
    if data is not None and "data_path" in fields:
        folder = apart if fields["data_path"] == _APART else data
        fields["data_path"] = str(folder / fields["data_path"])
    spec = Spec.make({**fields, "meet": 2, "split": split, "seed": seed, **own})
    cost = Cost(step_seconds=(_STEP_SECONDS,) * workers)
    try:
        last = train(spec, cost, data, seed=seed).looks[-1]
    except NonFinite:
        return {"loss": _DIVERGED, "accuracy": None if task in _WITHOUT_CLASSES else 0.0}
    return {"loss": last.loss, "accuracy": last.metrics.get("accuracy")}


def rows(records: Sequence[Record]) -> list[Row]:
    """Return a row a cell: plain, auto and the best of the search; means over the seeds."""
    groups: dict[tuple[Any, ...], dict[str, list[Record]]] = {}
    for record in records:
        cell = tuple(record[key] for key in _CELL)
        groups.setdefault(cell, {}).setdefault(record["setting"], []).append(record)
    return [_row(cell, by_setting) for cell, by_setting in groups.items()]


def _row(cell: tuple[Any, ...], by_setting: Mapping[str, Sequence[Record]]) -> Row:
    task, workers, split = cell
    some = next(iter(by_setting.values()))[0]
    measure = "loss" if some["accuracy"] is None else "accuracy"
    sign = 1 if measure == "loss" else -1
    means = {name: statistics.mean(one[measure] for one in ran) for name, ran in by_setting.items()}
    searched = {name: mean for name, mean in means.items() if name in _SEARCHED}
    best = min(searched, key=lambda name: sign * searched[name], default=None)
    plain = [one[measure] for one in by_setting.get("plain", ())]
    return {
        "task": task,
        "workers": workers,
        "split": split,
        "measured": measure,
        "plain": means.get("plain"),
        "seeds differ": statistics.stdev(plain) if len(plain) > 1 else None,
        "auto": means.get("auto"),
        "best": means[best] if best else None,
        "of": best,
        **{name: means[name] for name in _FURTHER if name in means},
    }


def missing(options: argparse.Namespace, known: Sequence[Record]) -> Iterator[Wanted]:
    """Yield the runs that are asked for and not known."""
    made = {tuple(one[key] for key in (*_CELL, "setting", "seed")) for one in known}
    settings = {"plain": (_PLAIN, options.seeds), "auto": (_AUTO, options.seeds)}
    settings |= {name: (own, options.search) for name, own in _SEARCHED.items()}
    settings |= {name: ({**_AUTO, **own}, options.further) for name, own in _FURTHER.items()}
    for cell in cells(options.tasks, options.workers):
        for name, (own, seeds) in settings.items():
            for seed in range(seeds):
                if (*cell, name, seed) not in made:
                    yield cell, name, own, seed


def main() -> None:
    """Make the runs that are missing, and show the table."""
    parser = command_line(__doc__)
    parser.add_argument("--out", type=Path, help="keep the runs in this file, one a line")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 5, 10])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--search", type=int, default=0, help="seeds of the search; 0: none")
    parser.add_argument("--further", type=int, default=0, help="seeds of other settings with auto")
    parser.add_argument("--tasks", nargs="+", default=[*TASKS], choices=[*TASKS], metavar="TASK")
    options = parser.parse_args()
    os.environ["DOWNPOUR_ALLOW"] = "lenet,diabetes,shapes,vae,char_gpt,word_lstm"
    folder = os.environ.get("DOWNPOUR_DATA")
    data = Path(folder) if folder else None
    sys.path.append(str(Path(__file__).parents[1] / "examples" / "tasks"))
    records = kept_runs(options.out)
    with TemporaryDirectory() as apart:
        if data is not None:
            set_apart(data, Path(apart))
        for cell, name, own, seed in missing(options, [*records]):
            try:
                came_to = trained(cell, own, seed, data, Path(apart))
            except SpecError as error:
                if error.field != "meet":
                    raise
                continue  # its shards have fewer batches than meetings
            facts = dict(zip(_CELL, cell, strict=True))
            records.append({**facts, "setting": name, "seed": seed, **came_to})
            keep_run(options.out, records[-1])
    show(rows(records), as_json=options.json)


if __name__ == "__main__":
    main()
