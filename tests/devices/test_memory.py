"""Too little memory of a device: a task is trained again to the same bytes, or fails in a line."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from downpour.base.errors import OutOfMemory
from downpour.base.states import FailureKind
from downpour.cluster.worker.attempt import failure_kind
from downpour.learning.accelerators import module_of, release
from downpour.learning.tasks.loaded import load
from downpour.learning.training.loop import LocalTask, ShardTraining

from .conftest import Bench, Office, office

# Forty layers whose outputs take 4 MiB each, and parameters a quarter of that.
DEEP = {
    "model": "mlp",
    "model_options": {"hidden": [256] * 40},
    "batch_size": 4096,
    "shards": 1,
    "learning_rate": 1e-4,
}
EXAMPLES = 8192


@pytest.fixture
def module(device: str) -> Any:
    """Torch's module of the device, if its allocator can be limited and measured."""
    found = module_of(device)
    needed = ("set_per_process_memory_fraction", "max_memory_allocated", "mem_get_info")
    if not all(hasattr(found, name) for name in needed):
        pytest.skip(f"torch limits no memory of {device}")
    return found


def forget(device: str) -> None:
    """Give back all that torch keeps of a device."""
    gc.collect()
    release(device)


@contextmanager
def limited(module: Any, device: str, count_bytes: float) -> Iterator[None]:
    """Limit this process to `count_bytes` of the device's memory."""
    total = module.mem_get_info()[1]
    forget(device)
    module.set_per_process_memory_fraction(count_bytes / total)
    try:
        yield
    finally:
        module.set_per_process_memory_fraction(1.0)


@pytest.fixture
def deep(device: str, numbers: Path, tmp_path: Path) -> Office:
    """A task of two steps that take much memory."""
    bench = Bench(device, numbers, tmp_path)
    return office(tmp_path / "shared", bench.spec(DEEP), EXAMPLES)


def peaks(module: Any, bench: Bench) -> list[float]:
    """Return the most bytes that a step has taken, as usual and keeping nothing on the device."""
    found = []
    loaded = load(bench.spec(DEEP), bench.dataset())
    for spills in (False, True):
        forget(bench.device)
        module.reset_peak_memory_stats()
        task = LocalTask(indices=np.arange(EXAMPLES), round=0, shard=0)
        ShardTraining(loaded, loaded.network(), task, spills=spills).advance(1)
        found.append(float(module.max_memory_allocated()))
    return found


def test_a_step_that_keeps_nothing_on_the_device_takes_much_less_of_it(
    module: Any, device: str, numbers: Path, tmp_path: Path
) -> None:
    """Less than half, in a deep network."""
    usual, spilled = peaks(module, Bench(device, numbers, tmp_path))
    assert spilled < usual - 100 * 2**20


def test_a_task_that_runs_out_of_memory_is_trained_to_the_same_bytes(
    module: Any, device: str, deep: Office, numbers: Path, tmp_path: Path
) -> None:
    """First with all that torch had kept given back, then keeping activations on the host."""
    usual, spilled = peaks(module, Bench(device, numbers, tmp_path))
    undisturbed = deep.run(device)
    assert undisturbed.shortages == 0
    with limited(module, device, (usual + spilled) / 2):
        tight = deep.run(device, attempt=1)
    assert tight.shortages == 2
    assert (tight.loss, tight.steps) == (undisturbed.loss, undisturbed.steps)
    assert tight.file.checksum == undisturbed.file.checksum
    again = deep.run(device, attempt=2)
    assert (again.shortages, again.file.checksum) == (0, undisturbed.file.checksum)


def test_a_device_that_is_far_too_small_is_told_in_one_line(
    module: Any, device: str, deep: Office
) -> None:
    """With what to change."""
    torch.zeros(1, device=device)
    forget(device)
    taken: int = module.memory_reserved()
    # Enough for the network, and not for the outputs of its first layers.
    with limited(module, device, taken + 24 * 2**20), pytest.raises(OutOfMemory) as failed:
        deep.run(device)
    line = str(failed.value)
    assert failure_kind(failed.value) is FailureKind.OUT_OF_MEMORY
    assert "\n" not in line
    assert "out of memory" in line.lower()
    assert "accumulate = 2 for smaller parts" in line
    assert len(line) < 400


def test_a_shortage_that_passes_costs_one_retry(
    device: str, deep: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if another process had taken the memory for a moment: the second try is as usual."""
    undisturbed = deep.run(device)
    usual = ShardTraining._step
    calls: list[bool] = []

    def short_once(training: ShardTraining) -> None:
        calls.append(training._spills)
        if len(calls) == 2:
            torch.empty(1 << 50, dtype=torch.uint8, device=device)
        usual(training)

    monkeypatch.setattr(ShardTraining, "_step", short_once)
    update = deep.run(device, attempt=1)
    assert update.shortages == 1
    assert calls == [False] * 4
    assert update.file.checksum == undisturbed.file.checksum


def test_memory_goes_back_when_an_experiment_is_over(
    module: Any, device: str, deep: Office
) -> None:
    """Other processes of the machine share the card."""
    forget(device)
    before = module.memory_reserved()
    deep.run(device)
    forget(device)
    assert module.memory_reserved() <= before + 64 * 2**20
