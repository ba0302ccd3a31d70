"""Batches that other processes prepare: the bytes are those of a worker that reads alone."""

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import forkserver
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves

from downpour.base.errors import FileCorrupt
from downpour.base.values import Part
from downpour.host import machine
from downpour.learning import numerics
from downpour.learning.tasks.batches import batch_of
from downpour.learning.tasks.loaded import LoadedTask
from downpour.learning.training import evaluation
from downpour.learning.training import loaders as training_loaders
from downpour.learning.training.evaluation import evaluate_on
from downpour.learning.training.loaders import (
    BatchRequest,
    Loaders,
    _Batches,
    _Prepared,
    _ReadingCost,
    load_again,
)
from downpour.learning.training.loop import LocalTask, ShardTraining
from downpour.learning.user_code import fixed_code
from tests.conftest import Allow
from tests.learning.tasks.conftest import loaded

TASKS = Path(__file__).parents[1] / "tasks"
SEED = 11


@pytest.fixture(autouse=True)
def lab(allowing: Allow) -> Iterator[None]:
    """The tasks' modules can be imported, also in loaders; these end with the test."""
    allowing(TASKS, "own_tasks", "reading_tasks")
    allowing(TASKS.parents[2], "tests")  # from which the second module imports
    yield
    forkserver._forkserver._stop()  # type: ignore[attr-defined]


def source(task: LoadedTask, root: Path, digest: str = "") -> Callable[[], LoadedTask]:
    """Return what makes a task in loaders, of code with its own digests or another one."""
    [key] = [path.name for path in root.iterdir() if path.name.startswith("task-")]
    code = fixed_code(task.spec.factories, {})
    spec = task.spec.replace(code=dict.fromkeys(code, digest) if digest else code)
    return partial(load_again, spec.to_toml(), root, key)


def request(*indices: int, step: int = 3) -> BatchRequest:
    """Return a request of some examples."""
    return BatchRequest(SEED, step, 0, np.array(indices, dtype=np.int64))


def begin(task: LoadedTask, steps: int = 6, loaders: Loaders | None = None) -> ShardTraining:
    """Begin to train some batches."""
    indices = np.arange(steps * task.spec.batch_size) % task.count("train")
    part = LocalTask(indices=indices, round=1, shard=0)
    return ShardTraining(task, task.network(), part, loaders=loaders)


def checksums(training: ShardTraining) -> list[bytes]:
    """Train to the end; return all bytes of the state."""
    training.advance(training.steps_total)
    state = training.snapshot()
    return [np.asarray(state[name]).tobytes() for name in sorted(state)]


Helped = Callable[..., Loaders]


@pytest.fixture
def helped(tmp_path: Path) -> Iterator[Helped]:
    """Start a number of loaders for a task, and wait until they are ready."""
    begun: list[Loaders] = []

    def load(task: LoadedTask, count: int) -> Loaders:
        loaders = Loaders(task, source(task, tmp_path), count)
        begun.append(loaders)
        loaders.wait_until_ready()
        return loaders

    yield load
    for one in begun:
        one.close()


def test_a_loader_prepares_the_batch_and_the_generators_of_the_worker(tmp_path: Path) -> None:
    """Examples draw from all three generators, and the step goes on from there."""
    task = loaded(tmp_path, "Noisy")
    prepared = _Batches(source(task, tmp_path))[request(1, 2, 5)]
    assert isinstance(prepared, _Prepared)
    assert prepared.drawn is not None
    training = begin(task)
    training._randomness.seed = SEED
    with training._randomness.active():
        training._randomness.begin(3)
        x, y = task.batch("train", np.array([1, 2, 5]))
        left = numerics.States.now()
        assert left == prepared.drawn
        torch.rand(1)
        prepared.drawn.restore()
        assert numerics.States.now() == left
    assert torch.equal(x, prepared.batch[0])
    assert torch.equal(y, prepared.batch[1])


def test_a_loader_tells_which_blocks_it_has_read(tmp_path: Path, helped: Helped) -> None:
    """The worker has their digests with the batch, and trains on no batch of other bytes."""
    task = loaded(tmp_path, "reading_tasks:Digested")
    loaders = helped(task, 1)
    begin(task, loaders=loaders).advance(2)
    told = dict(task.block_digests)
    assert 32 <= len(told) < 50  # with the examples that the loader has looked at
    task.block_digests |= {f"row {row}": "another" for row in range(task.count("train"))} | told
    with pytest.raises(FileCorrupt, match=r"row .* has changed since it was first read"):
        begin(task, loaders=loaders).advance(6)


def test_a_loader_tells_digests_again_if_batches_may_be_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that was stopped drops them: another one follows, or the same from an earlier step."""
    monkeypatch.setattr("multiprocessing.parent_process", lambda: "the worker")
    batches = _Batches(source(loaded(tmp_path, "reading_tasks:Digested"), tmp_path))

    def told(asked: BatchRequest) -> int:
        prepared = batches[asked]
        assert isinstance(prepared, _Prepared)
        return len(prepared.digests)

    first = told(request(40, 41))
    assert told(request(42, step=4)) == 1
    assert told(request(42, step=3)) == first + 1
    assert told(request(42, step=5)._replace(seed=SEED + 1)) == first + 1


def test_generators_that_nothing_draws_from_are_not_sent(tmp_path: Path) -> None:
    """Their states would be twelve kilobytes with each batch."""
    prepared = _Batches(source(loaded(tmp_path, "Plane"), tmp_path))[request(1)]
    assert isinstance(prepared, _Prepared)
    assert prepared.drawn is None


@pytest.mark.parametrize(
    ("name", "reason"),
    [("Raises", 'the disk is gone; example 7 of "train"'), ("Unsendable", "cannot pickle")],
)
def test_a_loader_says_why_it_cannot_give_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, reason: str
) -> None:
    """An example fails, or no process can send it; so the worker reads the batch."""
    task = loaded(tmp_path, f"reading_tasks:{name}")
    monkeypatch.setattr("reading_tasks.FAILING", {7})
    assert reason in str(_Batches(source(task, tmp_path))[request(7)])


def test_a_loader_refuses_code_that_was_not_submitted(tmp_path: Path) -> None:
    """A file that has changed since then would give other examples; the worker has the old ones."""
    task = loaded(tmp_path, "Plane")
    assert isinstance(_Batches(source(task, tmp_path))[request(1)], _Prepared)
    assert "has changed since" in str(_Batches(source(task, tmp_path, "0" * 64))[request(1)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("Noisy", {}),
        ("Noisy", {"accumulate": 3, "optimizer": "adam"}),
        ("Plane", {"precision": "bfloat16"}),
        ("reading_tasks:Unsendable", {}),
    ],
)
def test_the_bytes_do_not_depend_on_the_number_of_loaders(
    tmp_path: Path, helped: Helped, name: str, fields: dict[str, Any]
) -> None:
    """Without any, with one and with three; one task after the other."""
    task = loaded(tmp_path, name, **fields)
    expected = [checksums(begin(task)), checksums(begin(task, 4))]
    for count in (1, 3):
        loaders = helped(task, count)
        assert len(loaders.pids) == count
        assert [checksums(begin(task, steps, loaders)) for steps in (6, 4)] == expected


@pytest.mark.parametrize(
    ("share", "idle", "count"),
    [(0.04, 3, 0), (0.5, 0.2, 0), (0.3, 3, 2), (0.5, 1, 1), (0.9, 1, 2), (0.9, 9, 4)],
)
def test_loaders_pay_off_where_reading_takes_long_and_a_core_is_idle(
    monkeypatch: pytest.MonkeyPatch, share: float, idle: float, count: int
) -> None:
    """On four cores; a worker that mostly reads leaves them its own core, too."""
    seconds, cost = 0.0, _ReadingCost()
    monkeypatch.setattr(machine, "usable_cores", lambda: 4)
    monkeypatch.setattr(training_loaders, "perf_counter", lambda: seconds)
    monkeypatch.setattr(training_loaders, "_idle_seconds", lambda: idle * seconds)
    while (wanted := cost.wanted()) is None:
        seconds += 1
        cost.reading_seconds += share
    assert wanted == count


@pytest.mark.slow
def test_a_task_goes_on_with_or_without_loaders(tmp_path: Path, helped: Helped) -> None:
    """A snapshot after two steps is continued by a worker with loaders, and the other way round."""
    task = loaded(tmp_path, "Noisy")
    expected = checksums(begin(task))
    some = helped(task, 2)
    for first, second in ((None, some), (some, None), (some, some)):
        training = begin(task, loaders=first)
        training.advance(2)
        other = begin(task, loaders=second)
        other.restore(training.snapshot())
        assert checksums(other) == expected


@pytest.mark.slow
def test_loaders_end_a_stopped_task_in_their_own_time(
    tmp_path: Path, helped: Helped, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next task first takes the batches of the stopped one, however long they take."""
    monkeypatch.setattr(training_loaders, "_LOOK_SECONDS", 0.1)
    task = loaded(tmp_path, "reading_tasks:Slow")
    loaders = helped(task, 1)
    same = {*loaders.pids}
    for _ in range(2):
        begin(task, loaders=loaders).advance(1)
    assert loaders.pids == same != set()


def test_tensors_travel_as_copies_if_shared_memory_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """They arrive with their types, values and strides, which decide a kernel's bytes."""
    images = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    batch = {
        "views": [images, images[1:, ::2], torch.rand(3, 1).expand(3, 7)],
        "types": (torch.tensor(3), torch.rand(4).bfloat16(), torch.ones(0, 2, dtype=torch.bool)),
    }
    plain = _Prepared(batch, None)
    assert plain.sendable() is plain

    def full(_: torch.Tensor) -> None:
        raise RuntimeError("unable to allocate shared memory")

    monkeypatch.setattr(torch.Tensor, "share_memory_", full)
    sent = plain.sendable()
    assert not sent.is_shared
    arrived = ForkingPickler.loads(ForkingPickler.dumps(sent)).batch
    for before, after in zip(tree_leaves(batch), tree_leaves(arrived), strict=True):
        assert after.dtype is before.dtype
        assert torch.equal(after, before)
        assert (after.shape, after.stride()) == (before.shape, before.stride())
        assert not after.is_shared()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Plane", "Noisy"])
def test_an_evaluation_does_not_depend_on_the_number_of_loaders(
    tmp_path: Path, helped: Helped, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Also if its examples draw, one batch after the other; only then the process reads itself."""
    monkeypatch.setattr(evaluation, "examples_together", lambda *_: 5)
    task = loaded(tmp_path, name)
    network, held_out = task.network(), np.arange(3, 40)
    whole = np.arange(task.count("test"))
    read_here: list[str] = []

    def batch(part: str, indices: Any) -> Any:
        read_here.append(part)
        return batch_of(task.task, task.examples(part), part, indices, "cpu")

    monkeypatch.setattr(task, "batch", batch)

    def measured(loaders: Loaders | None = None) -> list[float]:
        parts: tuple[tuple[Any, Part], ...] = ((whole, "test"), (held_out, "validation"))
        return [evaluate_on(network, task, *each, loaders).loss for each in (*parts, *parts)]

    expected = measured()
    for count in (1, 3):
        read_here.clear()
        assert measured(helped(task, count)) == expected
        assert bool(read_here) == (name != "Plane")


@pytest.mark.slow
def test_a_killed_loader_is_replaced_and_changes_nothing(
    tmp_path: Path, helped: Helped, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker reads on its own meanwhile. After the third time, it goes on without loaders."""
    task = loaded(tmp_path, "Noisy")
    steps = 400  # on a busy machine, more than ten pass before the worker notices
    expected = checksums(begin(task, steps))
    loaders = helped(task, 1)
    training = begin(task, steps, loaders)
    for _ in range(3):
        training.advance(3)
        [pid] = loaders.pids
        os.kill(pid, signal.SIGKILL)
        while loaders.pids == {pid}:
            training.advance(1)
        loaders.wait_until_ready()
    assert checksums(training) == expected
    assert not loaders.pids
    assert "the worker reads on its own" in caplog.text
