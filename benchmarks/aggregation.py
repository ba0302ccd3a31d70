"""How fast a round's updates are folded, against adding the same numbers in memory.

The fold maps, hashes, sums and checks files that lie in the page cache; the model that they were
trained from is one more of them. The yardstick is the plain
mean of the same tensors taken in place, `total.add_(tensor)`, on one thread of torch and of numpy,
whichever is faster. All run in turn in one process, the best of several counts, and the ratio means
more than the speeds.
"""

from __future__ import annotations

import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import torch
from common import Row, command_line, folders, show

from downpour.base.values import PublishedFile
from downpour.files.aggregators import AGGREGATORS, Contribution, fold
from downpour.files.store import Array, DirectoryStore, encode

RULES = ("average", "samples", "median", "trimmed-mean(0.2)")


def main() -> None:
    """Parse, measure every folder, print."""
    parser = command_line(__doc__)
    parser.add_argument("--files", type=int, default=10)
    parser.add_argument("--megabytes", type=int, default=100, help="size of a file")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folders", nargs="+", type=Path, default=list(folders().values()))
    options = parser.parse_args()
    torch.set_num_threads(1)
    tensors = _tensors(options.files, options.megabytes)
    rows = [
        row
        for folder in options.folders
        for row in measure(folder, tensors, repeats=options.repeats)
    ]
    show(rows, as_json=options.json)


def measure(folder: Path, tensors: list[Array], *, repeats: int) -> list[Row]:
    """Return a row for every rule and number of threads; speeds are of update bytes read."""
    gigabytes = sum(tensor.nbytes for tensor in tensors) / 1e9
    rows: list[Row] = []
    with _published(folder, tensors) as (store, model, contributions):
        for rule in RULES:
            weights = AGGREGATORS[rule](contributions)
            contenders: dict[str, Callable[[], object]] = {
                "torch": _torch_mean(tensors),
                "numpy": _numpy_mean(tensors),
                "one": partial(fold, store, model, contributions, weights, threads=1),
                "two": partial(fold, store, model, contributions, weights, threads=2),
            }
            seconds = _best_seconds(contenders, repeats)
            yardstick = min(seconds["torch"], seconds["numpy"])
            memory_mb = _peak_bytes(contenders["two"]) / 1e6
            rows += [
                {
                    "folder": str(folder),
                    "rule": rule,
                    "threads": threads,
                    "fold_s": seconds[name],
                    "fold_gb_s": gigabytes / seconds[name],
                    "memory_mb": memory_mb,
                    "torch_gb_s": gigabytes / seconds["torch"],
                    "numpy_gb_s": gigabytes / seconds["numpy"],
                    "ratio": yardstick / seconds[name],
                }
                for threads, name in ((1, "one"), (2, "two"))
            ]
    return rows


@contextmanager
def _published(
    folder: Path, tensors: list[Array]
) -> Iterator[tuple[DirectoryStore, PublishedFile, list[Contribution]]]:
    with tempfile.TemporaryDirectory(dir=folder) as path:
        store = DirectoryStore(Path(path))
        yield (
            store,
            store.put_new("model", encode({"weight": tensors[0]}, {})),
            [
                Contribution(
                    shard=shard,
                    samples=1000 + shard,
                    loss=1.0,
                    file=store.put_new(f"update-{shard}", encode({"weight": tensor}, {})),
                )
                for shard, tensor in enumerate(tensors)
            ],
        )


def _best_seconds(contenders: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(repeats):
        for name, contender in contenders.items():
            began = time.perf_counter()
            contender()
            best[name] = min(best[name], time.perf_counter() - began)
    return best


def _peak_bytes(contender: Callable[[], object]) -> int:
    """Return the most memory that it takes, apart from mapped files."""
    tracemalloc.start()
    try:
        contender()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _torch_mean(tensors: list[Array]) -> Callable[[], None]:
    sources = [torch.from_numpy(tensor) for tensor in tensors]
    total = torch.empty_like(sources[0])

    def mean() -> None:
        total.copy_(sources[0])
        for source in sources[1:]:
            total.add_(source)
        total.div_(len(sources))

    return mean


def _numpy_mean(tensors: list[Array]) -> Callable[[], None]:
    total = np.empty_like(tensors[0])

    def mean() -> None:
        np.copyto(total, tensors[0])
        for tensor in tensors[1:]:
            np.add(total, tensor, out=total)
        np.divide(total, len(tensors), out=total)

    return mean


def _tensors(files: int, megabytes: int) -> list[Array]:
    random = np.random.default_rng(0)
    return [random.random(megabytes * 250_000, np.float32) for _ in range(files)]


if __name__ == "__main__":
    main()
