"""A task that reads tokens from a bucket, with steps that take a fixed time without a processor.

It notes, for each process that reads, when the first and the last batch were there, how long each
batch waited for the bytes of its blocks and was read in all, and which blocks they touched.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from downpour import Task
from downpour.data import Blocks

LENGTH = 1024
URL, STEP_SECONDS, NOTES = "LARGE_DATA_URL", "LARGE_DATA_STEP_SECONDS", "LARGE_DATA_NOTES"
_EACH = 100


class Notes:
    """What a process has noted so far, in a file of its own."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"{os.getpid()}.json"
        self._first = self._last = 0.0
        self._waits: list[float] = []
        self._reads: list[float] = []
        self._touched: set[int] = set()

    def add(self, waited: float, read: float, touched: np.ndarray[Any, Any]) -> None:
        """Note a batch that is there now; written with every hundredth."""
        self._last = time.time()
        self._first = self._first or self._last
        self._waits.append(round(waited, 5))
        self._reads.append(round(read, 5))
        self._touched.update(touched.tolist())
        if len(self._waits) % _EACH in {0, 1}:
            self._write()

    def _write(self) -> None:
        values: dict[str, Any] = {"first": self._first, "last": self._last, "waits": self._waits}
        values |= {"reads": self._reads, "touched": sorted(self._touched)}
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(values))
        new.replace(self._path)


class NotedBlocks(Blocks):
    """Blocks that note how long batches wait for bytes, and how long they are read in all."""

    _notes: Notes | None = None
    _waited = 0.0

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return some examples."""
        began, self._waited = time.perf_counter(), 0.0
        found = super().__getitems__(indices)
        if NOTES in os.environ and len(indices) > 1:
            if self._notes is None:
                self._notes = Notes(Path(os.environ[NOTES]))
            touched = np.unique(np.searchsorted(self.block_ends, list(indices), side="right"))
            self._notes.add(self._waited, time.perf_counter() - began, touched)
        return found

    def _read(self, numbers: list[int]) -> Any:
        began = time.perf_counter()
        found = super()._read(numbers)
        self._waited += time.perf_counter() - began
        return found


class Slow(nn.Module):
    """A small network whose forward pass in training takes its time."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.head = nn.Linear(LENGTH, 8)
        self._seconds = seconds

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [b, 8] for tokens [b, 1024]."""
        if self.training:
            time.sleep(self._seconds)
        logits: Tensor = self.head(x.float() / 65536)
        return logits


class TokenTask(Task):
    """Says of a window of random tokens what its first one leaves when divided by eight."""

    def model(self) -> nn.Module:
        """Return the network."""
        return Slow(float(os.environ.get(STEP_SECONDS, "0")))

    def examples(self, part: str) -> Any:
        """Return windows of tokens."""
        kind = NotedBlocks if part == "train" else Blocks
        return kind(os.environ[URL], files=f"{part}*", length=LENGTH)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean loss."""
        x, _ = batch
        return cross_entropy(model(x), torch.remainder(x[:, 0], 8))
