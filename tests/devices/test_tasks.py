"""Workers on an accelerator: equal tasks, equal files, whoever trains them and however often."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from downpour.cluster.worker.attempt import HandOverStop, TaskControl
from downpour.cluster.worker.task_runner import TaskRunner
from downpour.files.compression import CODECS
from downpour.files.store import decode, decompressed

from .conftest import Bench, Office, numbered, office

ADAM = {"model": "mnist-cnn", "optimizer": "adam", "epochs": 2, "optimizer_state": "keep"}


@pytest.fixture
def first(bench: Bench, tmp_path: Path) -> Office:
    """A task of three steps with dropout, of which every step is saved."""
    spec = bench.spec({**ADAM, "shards": 1, "snapshot_every": 1e-9})
    return office(tmp_path / "shared", spec, 96)


def test_two_workers_make_the_same_update(first: Office, device: str) -> None:
    """Of the parameters, and of the optimizer's state, which the next task goes on with."""
    one, other = first.run(device), first.run(device, attempt=1)
    assert (one.steps, one.shortages) == (3, 0)
    assert one.file.checksum == other.file.checksum
    assert one.optimizer_state is not None
    assert other.optimizer_state is not None
    assert one.optimizer_state.checksum == other.optimizer_state.checksum
    with_state = first.run(device, attempt=2, optimizer_state=one.optimizer_state)
    assert with_state.file.checksum != one.file.checksum


def test_auto_is_the_device_of_the_worker(bench: Bench, device: str, tmp_path: Path) -> None:
    """To the bytes of a spec that names it; and the processor's where a worker has that.

    A number of the first one is the kind alone: `cuda:0` is `cuda`.
    """
    made: dict[tuple[str, str], str] = {}
    first = f"{device}:0" if numbered(device) else device
    pairs = (device, device), ("auto", device), ("auto", first), ("auto", "cpu"), ("cpu", device)
    for place, (asked, own) in enumerate(pairs):
        spec = bench.spec({**ADAM, "shards": 1, "device": asked})
        made[asked, own] = office(tmp_path / str(place), spec, 96).run(own).file.checksum
    assert made[device, device] == made["auto", device] == made["auto", first]
    assert made["auto", "cpu"] == made["cpu", device] != made["auto", device]


class _HandsOver(TaskControl):
    """Is asked to hand over after the first step."""

    def advance(self, steps_done: int) -> None:
        TaskControl.advance(self, steps_done)
        self.save_and_stop()


def test_a_running_task_goes_on_by_another_worker_with_the_same_bytes(
    first: Office, device: str
) -> None:
    """Parameters, optimizer and draws: the update is that of a task which nothing disturbed."""
    undisturbed = first.run(device)
    attempt = replace(first.task.id, attempt=1)
    with pytest.raises(HandOverStop) as stopped:
        TaskRunner(first.shared, device).run(replace(first.task, id=attempt), _HandsOver(attempt))
    snapshot = stopped.value.snapshot
    assert snapshot.steps_done == 1
    moved = first.run(device, attempt=2, snapshot=snapshot)
    assert moved.steps == 3
    assert moved.loss == undisturbed.loss
    assert moved.file.checksum == undisturbed.file.checksum
    assert moved.optimizer_state is not None
    assert undisturbed.optimizer_state is not None
    assert moved.optimizer_state.checksum == undisturbed.optimizer_state.checksum


@pytest.mark.parametrize("codec", CODECS)
def test_an_update_is_compressed_as_one_of_the_processor_is(
    bench: Bench, device: str, tmp_path: Path, codec: str
) -> None:
    """Codecs take arrays of the host; the same bytes twice, and finite numbers."""
    fields: dict[str, Any] = {"model": "mnist-cnn", "compression": codec, "shards": 1}
    task = office(tmp_path / "shared", bench.spec(fields), 96)
    one, other = task.run(device), task.run(device, attempt=1)
    assert one.file.checksum == other.file.checksum
    update = decode(bytes(task.shared.store("any").read(one.file)), "update")
    assert all(np.isfinite(value).all() for _, value in decompressed(update))
