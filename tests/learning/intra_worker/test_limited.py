"""Real limits of memory: a worker computes as much at once as fits, to the same bytes."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from downpour.core.spec import Spec
from tests.conftest import Allow
from tests.lab.failing import NoLab
from tests.lab.shares import HostShare, remove_shares, why_no_shares
from tests.learning.intra_worker.conftest import ROOT

GIB = 1 << 30
LITTLE = 480 << 20
"""Torch and the data take half of it or more."""
LAB = f"downpour-limited-{os.getpid()}"

Run = Callable[..., dict[str, Any]]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(why_no_shares()), reason=why_no_shares() or "there are groups"),
]


class Hungry(nn.Module):
    """Keeps some megabytes an example for going backward: seven times 64 bytes, so often."""

    def __init__(self, features: int, classes: int, often: int) -> None:
        super().__init__()
        self.often = often
        self.first, self.last = nn.Linear(features, 16), nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        wide = self.first(x.flatten(1)).repeat(1, self.often)
        for _ in range(6):
            wide = torch.tanh(wide)
        shown: Tensor = self.last(wide.view(len(x), -1, 16).mean(1))
        return shown


def hungry_network(sample_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """A factory of a network that keeps 7 MB an example."""
    return Hungry(int(np.prod(sample_shape)), num_classes, 1 << 14)


def hungrier_network(sample_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """A factory of a network that keeps 230 MB an example."""
    return Hungry(int(np.prod(sample_shape)), num_classes, 1 << 19)


@pytest.fixture
def run(digits: tuple[Path, str], allowing: Allow) -> Iterator[Run]:
    """Train in a process with so much memory, or with all there is."""
    allowing(ROOT, "tests.learning.intra_worker.test_limited")
    folder, key = digits

    def train(memory_bytes: int | None = None, **fields: Any) -> dict[str, Any]:
        spec = Spec.make(
            {
                "dataset": "digits",
                "model": "tests.learning.intra_worker.test_limited:hungry_network",
                "batch_size": 32,
                "meet": 1,
                **fields,
            }
        )
        entrances = []
        if memory_bytes is not None:
            share = HostShare(LAB, f"of-{memory_bytes}")
            share.limit_memory(memory_bytes)
            entrances = share.entrances[-1:]  # that of memory: processors have no limit here
        words = [spec.to_toml(), str(folder), key, *map(str, entrances)]
        ended = subprocess.run(
            [sys.executable, "-m", "tests.learning.intra_worker.limited", *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, (ended.returncode, ended.stderr[-2000:])
        told: dict[str, Any] = json.loads(ended.stdout)
        return told

    try:
        yield train
    except NoLab as error:
        pytest.skip(str(error))
    finally:
        remove_shares(LAB)


def test_less_memory_takes_fewer_processes_and_changes_no_byte(run: Run) -> None:
    """Four at once fit into four gigabytes; in one the kernel kills helpers until fewer fit."""
    inside = {"processes": 4}
    free = run(inside=inside)
    large, small = (run(size * GIB, inside=inside) for size in (4, 1))
    assert (large["processes"], large["shortages"]) == (4, 0)
    assert small["processes"] < 4
    assert free["checksum"] == large["checksum"] == small["checksum"]


def test_a_part_that_does_not_fit_fails_in_one_line(run: Run) -> None:
    """The process lives on to say so; with smaller parts, as the line says, it trains."""
    failed = run(LITTLE)["failed"]
    assert "\n" not in failed
    assert "32 examples at a time are too many: try accumulate = 2 for smaller parts" in failed
    parts = run(LITTLE, accumulate=8)
    assert parts["checksum"] == run(accumulate=8)["checksum"]


def test_an_example_that_does_not_fit_fails_in_one_line(run: Run) -> None:
    """No field of the spec helps there."""
    hungrier = "tests.learning.intra_worker.test_limited:hungrier_network"
    failed = run(LITTLE, model=hungrier, batch_size=2, accumulate=2)["failed"]
    assert "\n" not in failed
    assert "one example at a time is too much" in failed
