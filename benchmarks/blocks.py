"""Examples by index from blocks: `downpour.data.Blocks` beside mosaicml-streaming and litdata.

All of them read the same files: JPEGs of 128 px with a label, in MDS shards of 8 MB that
mosaicml-streaming has written. They decode them to uint8 tensors, in processes of a torch
DataLoader, in batches of 64. Peers that are not installed are left out. litdata reads only
compressed MDS, so it is measured with `--compression zstd`.

- `order` is `own` for each library's own shuffled order, and `random` for a permutation by index.
- `examples_a_second` begins with the first batch, so it does not have the start of the processes.
  The readers alternate, and each shows the best of its repeats.
- `resume_seconds` is the time from nothing to the first batch of the epoch's second half, in this
  process: a new reader is told where it was. `order` is `own`.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from common import Row, command_line, folders, show
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader

from downpour.core.spec import Spec
from downpour.data import Blocks
from downpour.learning.training.epoch_order import batch_order

BATCH = 64
SIDE = 128
SHARD = "8mb"


class Reader(NamedTuple):
    """A library's loader of a folder with a number of processes, and how it resumes."""

    library: str
    order: str
    load: Callable[[str, int], Any]
    resume: Callable[[str, int], Iterator[Any]] | None = None
    """Yields batches from an example of the epoch on."""


class Indexed:
    """Any dataset by index, without what else it can do."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index]


def collate(rows: list[dict[str, Any]]) -> tuple[Tensor, Tensor]:
    """Return images [b, 3, h, w] and labels [b]."""
    images = [row["image"] for row in rows]
    if not isinstance(images[0], Tensor):
        images = [torch.from_numpy(np.array(one).transpose(2, 0, 1)) for one in images]
    return torch.stack(images), torch.tensor([int(row["label"]) for row in rows])


def loader(dataset: Any, processes: int, order: Any = None) -> Any:
    """Return torch's loader."""
    return DataLoader(dataset, BATCH, sampler=order, num_workers=processes, collate_fn=collate)


def permutation(count: int) -> list[int]:
    """Return a random order."""
    order: list[int] = np.random.default_rng(1).permutation(count).tolist()
    return order


def own_order(blocks: Blocks) -> list[int]:
    """Return the order of an epoch of one shard, as a worker makes it."""
    spec, indices = Spec(batch_size=BATCH), np.arange(len(blocks))
    ends, window = blocks.block_ends, blocks.window_blocks
    order = batch_order(spec, indices, None, 0, 0, block_ends=ends, window_blocks=window)
    numbers: list[int] = order.tolist()
    return numbers


def of_downpour() -> list[Reader]:
    """Return our readers."""

    def own(folder: str, processes: int) -> Any:
        blocks = Blocks(folder)
        return loader(blocks, processes, own_order(blocks))

    def resume(folder: str, start: int) -> Iterator[Any]:
        blocks = Blocks(folder)
        return iter(loader(blocks, 0, own_order(blocks)[start:]))

    def by_index(folder: str, processes: int) -> Any:
        blocks = Blocks(folder)
        return loader(blocks, processes, permutation(len(blocks)))

    return [Reader("downpour", "own", own, resume), Reader("downpour", "random", by_index)]


def of_mosaicml() -> list[Reader]:
    """Return the readers of mosaicml-streaming."""
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    def opened(folder: str) -> Any:
        clean_stale_shared_memory()
        return StreamingDataset(local=folder, batch_size=BATCH, shuffle=True)

    def resume(folder: str, start: int) -> Iterator[Any]:
        dataset = opened(folder)
        dataset.load_state_dict(dataset.state_dict(start, from_beginning=True))
        return iter(loader(dataset, 0))

    def by_index(folder: str, processes: int) -> Any:
        dataset = opened(folder)
        return loader(Indexed(dataset), processes, permutation(len(dataset)))

    return [
        Reader("mosaicml", "own", lambda folder, n: loader(opened(folder), n), resume),
        Reader("mosaicml", "random", by_index),
    ]


def of_litdata() -> list[Reader]:
    """Return the readers of litdata, which reads MDS as it is."""
    from litdata import StreamingDataLoader, StreamingDataset

    def own(folder: str, processes: int) -> Any:
        dataset = StreamingDataset(folder, shuffle=True)
        return StreamingDataLoader(
            dataset, batch_size=BATCH, num_workers=processes, collate_fn=collate
        )

    def resume(folder: str, start: int) -> Iterator[Any]:
        before = own(folder, 0)
        for _ in islice(before, start // BATCH):
            pass
        state, after = before.state_dict(), own(folder, 0)
        yield None
        after.load_state_dict(state)
        yield from after

    def by_index(folder: str, processes: int) -> Any:
        dataset = StreamingDataset(folder)
        return loader(Indexed(dataset), processes, permutation(len(dataset)))

    return [Reader("litdata", "own", own, resume), Reader("litdata", "random", by_index)]


def readers(*, compressed: bool) -> list[Reader]:
    """Return the readers of all libraries that are installed and can read the files."""
    found = of_downpour()
    peers = {"streaming": of_mosaicml, **({"litdata": of_litdata} if compressed else {})}
    for name, make in peers.items():
        if importlib.util.find_spec(name) is None:
            print(f"{name} is not installed")
        else:
            found += make()
    return found


def write(folder: Path, count: int, compression: str | None) -> None:
    """Write pictures of smooth noise, which JPEG makes about 8 kB each."""
    from streaming import MDSWriter

    generator = np.random.default_rng(0)
    columns = {"image": "jpeg", "label": "int"}
    with MDSWriter(
        out=str(folder), columns=columns, size_limit=SHARD, compression=compression
    ) as writer:
        for number in range(count):
            noise = generator.integers(0, 255, (SIDE // 2, SIDE // 2, 3), dtype=np.uint8)
            image = Image.fromarray(noise).resize((SIDE, SIDE))
            writer.write({"image": image, "label": number % 10})


def rate(reader: Reader, folder: str, processes: int, count: int) -> float:
    """Return examples a second after the first batch."""
    batches = iter(reader.load(folder, processes))
    next(batches)
    began, read = perf_counter(), 0
    for images, _ in batches:
        read += len(images)
        if read >= count:
            break
    return read / (perf_counter() - began)


def resume_seconds(reader: Reader, folder: str, start: int) -> float:
    """Return the time to the first batch from an example on."""
    began = perf_counter()
    batches = reader.resume(folder, start) if reader.resume else iter(())
    if next(batches) is None:  # it had to read until there
        began = perf_counter()
        next(batches)
    return perf_counter() - began


def main() -> None:
    """Measure and print."""
    parser = command_line(__doc__)
    parser.add_argument("--count", type=int, default=25_000, metavar="N", help="examples in files")
    parser.add_argument("--read", type=int, default=4_000, metavar="N", help="examples to time")
    parser.add_argument("--compression", metavar="CODEC", help="of the files, such as zstd")
    parser.add_argument("--repeats", type=int, default=3, metavar="N")
    options = parser.parse_args()
    if importlib.util.find_spec("streaming") is None:
        print("mosaicml-streaming, which writes the files, is not installed")
        return
    with tempfile.TemporaryDirectory(dir=folders()["disk"]) as place:
        folder = Path(place) / "mds"
        write(folder, options.count, options.compression)
        rows: dict[tuple[str, str], Row] = {}
        for reader in options.repeats * readers(compressed=options.compression is not None):
            row = rows.setdefault(
                (reader.library, reader.order),
                {"library": reader.library, "order": reader.order},
            )
            for processes in (1, 4):
                name = f"examples_a_second_{processes}"
                found = rate(reader, str(folder), processes, options.read)
                row[name] = max(found, float(str(row.get(name, 0))))
            if reader.resume is not None:
                seconds = resume_seconds(reader, str(folder), options.count // 2)
                row["resume_seconds"] = min(seconds, float(str(row.get("resume_seconds", seconds))))
        show([*rows.values()], as_json=options.json)


if __name__ == "__main__":
    main()
