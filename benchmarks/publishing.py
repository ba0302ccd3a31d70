"""How long publishing takes, against writing and syncing the same bytes and nothing else.

Publishing adds a hash, a link, the removal of the hidden name and the directory's sync. Both run in
turn in one process; the median of several, because syncing varies.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from common import Row, command_line, show

from downpour.files.store import Array, DirectoryStore, encode

_WRITE_BYTES = 2**20


def main() -> None:
    """Parse, measure every folder and size, print."""
    parser = command_line(__doc__)
    parser.add_argument("--megabytes", nargs="+", type=float, default=[4.8, 100.0])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--folders", nargs="+", type=Path, default=[Path(tempfile.gettempdir())])
    options = parser.parse_args()
    rows = [
        measure(folder, megabytes, repeats=options.repeats)
        for folder in options.folders
        for megabytes in options.megabytes
    ]
    show(rows, as_json=options.json)


def measure(folder: Path, megabytes: float, *, repeats: int) -> Row:
    """Return the medians of publishing and of raw writing, in milliseconds."""
    weight = np.random.default_rng(0).random(int(megabytes * 250_000), np.float32)
    publish_seconds, raw_seconds = [], []
    with tempfile.TemporaryDirectory(dir=folder) as path:
        store = DirectoryStore(Path(path))
        for _ in range(repeats):
            raw_seconds.append(_raw(Path(path) / "raw", weight))
            began = time.perf_counter()
            store.put_new("update", encode({"weight": weight}, {}))
            publish_seconds.append(time.perf_counter() - began)
            store.delete("update")
    publish, raw = statistics.median(publish_seconds), statistics.median(raw_seconds)
    return {
        "folder": str(folder),
        "megabytes": megabytes,
        "publish_ms": publish * 1e3,
        "raw_ms": raw * 1e3,
        "ratio": publish / raw,
    }


def _raw(path: Path, weight: Array) -> float:
    content = memoryview(weight).cast("B")  # type: ignore[arg-type]
    began = time.perf_counter()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    for start in range(0, len(content), _WRITE_BYTES):
        os.write(descriptor, content[start : start + _WRITE_BYTES])
    os.fsync(descriptor)
    os.close(descriptor)
    seconds = time.perf_counter() - began
    path.unlink()
    return seconds


if __name__ == "__main__":
    main()
