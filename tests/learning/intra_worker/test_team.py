"""Real helper processes: the bytes are those of a worker that trains alone, whatever happens."""

import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from downpour.base.errors import OutOfMemory
from downpour.core.spec import Spec
from downpour.host.machine import HELPER_PIDS, SystemSampler
from downpour.learning.intra_worker import helper_process
from downpour.learning.intra_worker import team as own_team
from downpour.learning.tasks.agreement import prepare_data
from downpour.learning.tasks.batches import Classification
from downpour.learning.training.loop import ShardTraining
from tests.conftest import Allow
from tests.learning.intra_worker.conftest import ROOT, Trainer

Make = Callable[..., Trainer]

DATA = {"inside": {"processes": 2}}
PIPELINE = {"inside": {"processes": 2, "how": "pipeline"}, "accumulate": 4}
THREE_STAGES = {"inside": {"processes": 3, "how": "pipeline", "cut": ["relu1", "dropout1"]}}
HYBRID = {"inside": {"processes": 2, "how": "hybrid"}}

pytestmark = pytest.mark.slow

arranged = pytest.mark.parametrize("fields", [DATA, PIPELINE, THREE_STAGES, HYBRID], ids=str)


def trained(training: ShardTraining) -> Mapping[str, Any]:
    """Train to the end; return the state."""
    training.advance(training.steps_total)
    return training.snapshot()


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two states are the same to the bit."""
    return one.keys() == other.keys() and all(one[k].tobytes() == other[k].tobytes() for k in one)


@pytest.mark.parametrize(
    "fields",
    [
        DATA,
        {"inside": {"processes": 3}},
        {"accumulate": 5},
        {"precision": "bfloat16"},
        {"clip_norm": 0.5, "optimizer": "adamw", "learning_rate": 0.001},
        {"inside": {"processes": 5}, "batch_size": 21},
        PIPELINE,
        THREE_STAGES,
        {**PIPELINE, "precision": "bfloat16", "channels_last": False},
        {**PIPELINE, "clip_norm": 0.5, "optimizer": "adamw", "learning_rate": 0.001},
        {**THREE_STAGES, "model": "conv-lstm", "inside": {"processes": 3, "how": "pipeline"}},
        {**DATA, "flip": True},
        HYBRID,
        {
            "inside": {"processes": 3, "how": "hybrid"},
            "accumulate": 4,
            "flip": True,
            "model": "tests.learning.intra_worker.conftest:drawing_network",
        },
        {**HYBRID, "clip_norm": 0.5, "optimizer": "adamw", "learning_rate": 0.001},
        {
            "inside": {"processes": 3, "how": "pipeline", "cut": ["relu_", "dense"]},
            "model": "tests.learning.intra_worker.conftest:drawing_network",
        },
    ],
    ids=str,
)
def test_helpers_change_no_byte(trainer: Make, fields: dict[str, Any]) -> None:
    """Also of a last batch with fewer examples; a terminal's signals do not end them."""
    made = trainer(**fields)
    training, team = made.helped()
    processes = [psutil.Process(pid) for pid in team.pids]
    for one in processes:
        one.send_signal(signal.SIGINT)
        one.send_signal(signal.SIGTERM)
    assert same(trained(training), trained(made.alone()))
    assert team.steps_helped == 5
    assert team.is_whole
    assert all(one.is_running() for one in processes)
    team.close()
    assert not any(map(psutil.pid_exists, [one.pid for one in processes]))


@pytest.mark.parametrize("how", ["data", "pipeline", "hybrid"])
def test_helpers_change_no_byte_of_a_sum_and_a_count(
    trainer: Make, allowing: Allow, tmp_path: Path, how: str
) -> None:
    """Each part's count is known to the worker, whoever computed it."""
    allowing(ROOT / "tests" / "learning" / "tasks", "optimizer_tasks")
    inside = {"processes": 2, "how": how}
    fields = {"task": "optimizer_tasks:Tokens", "batch_size": 16, "inside": inside, "accumulate": 3}
    spec = Spec.make(fields)
    made = replace(trainer(), spec=spec, folder=tmp_path, key=prepare_data(spec, tmp_path))
    training, team = made.helped()
    assert same(trained(training), trained(made.alone()))
    assert team.steps_helped > 0


@pytest.mark.parametrize(
    "fields",
    [
        {"inside": {"processes": 3}},
        THREE_STAGES,
        {"inside": {"processes": 3, "how": "hybrid"}, "accumulate": 4},
    ],
    ids=str,
)
def test_fewer_processes_change_no_byte(trainer: Make, fields: dict[str, Any]) -> None:
    """Parts and slices are those of the spec, and two processes share what is for three."""
    made = trainer(**fields)
    training, team = made.helped(processes=2)
    assert len(team.pids) == 1
    assert same(trained(training), trained(made.alone()))
    assert team.steps_helped == 5
    assert team.is_whole


def test_too_few_cores_are_told_once(trainer: Make, caplog: pytest.LogCaptureFixture) -> None:
    """However often helpers are started anew."""
    cores = len(os.sched_getaffinity(0))
    made = trainer(threads=cores + 1)
    for _ in range(2):
        made.helped()
    told = [record.getMessage() for record in caplog.records]
    assert told == [f"{2 * cores + 2} threads of all processes share {cores} cores"]


def test_layers_and_parts_give_the_same_bytes(trainer: Make) -> None:
    """What each process has is no part of what is computed."""
    parts, _ = trainer(**DATA, accumulate=4).helped()
    layers, _ = trainer(**PIPELINE).helped()
    assert same(trained(parts), trained(layers))


@arranged
def test_another_worker_goes_on_alone_and_so_does_one_whose_helper_is_killed(
    trainer: Make, fields: dict[str, Any]
) -> None:
    """With the snapshot of one that had helpers, and the other way round; no byte is lost.

    The worker whose helper is killed computes the whole step, and trains on alone.
    """
    made = trainer(**fields)
    expected = trained(made.alone())
    first, team = made.helped()
    first.advance(2)
    second = made.going_on(first)
    second.advance(1)
    third = made.going_on(second, team)
    assert same(trained(third), expected)
    assert team.is_whole
    fourth = made.going_on(made.alone(), team)
    fourth.advance(2)
    os.kill(team.pids[0], signal.SIGKILL)
    assert same(trained(fourth), expected)
    assert not team.is_whole


@pytest.mark.parametrize(
    "fields",
    [{"inside": {"processes": 4}}, THREE_STAGES, {"inside": {"processes": 4, "how": "hybrid"}}],
    ids=str,
)
def test_half_as_many_go_on_where_the_kernel_kills_for_lack_of_memory(
    trainer: Make, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    """Within the same task, and to the same bytes; the step at hand is computed alone."""
    made = trainer(**fields)
    training, team = made.helped()
    training.advance(1)
    monkeypatch.setattr(helper_process, "kills", lambda: 1 << 40)
    os.kill(team.pids[-1], signal.SIGKILL)
    training.advance(1)
    assert (team.processes, team.shortages) == (1, 1)
    team.wait_until_ready(60.0)
    training.advance(1)
    assert (team.processes, len(team.pids)) == (2, 1)
    assert same(trained(training), trained(made.alone()))


def test_half_as_many_go_on_where_a_process_gets_no_memory(
    trainer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is the worker's own; one process alone has nobody to do without."""
    made = trainer(**DATA)
    expected = trained(made.alone())
    training, team = made.helped()
    training.advance(2)
    compute, failures = Classification.loss, [MemoryError()]

    def loss(*given: Any) -> Any:
        if failures:
            raise failures.pop()
        return compute(*given)

    monkeypatch.setattr(Classification, "loss", loss)
    assert same(trained(training), expected)
    assert (team.processes, team.shortages, team.pids) == (1, 1, [])
    failures.append(MemoryError("enough"))
    with pytest.raises(OutOfMemory, match=r"enough; \d+ MiB are free; 10 examples at a time"):
        made.alone().advance(1)


def test_there_are_as_many_as_memory_has_room_for(
    trainer: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A helper needs what its worker has by then; with room for none, the worker is alone."""
    made = trainer(inside={"processes": 3})
    monkeypatch.setattr(own_team, "own_memory", lambda: 1000)
    for free, helpers in ((5000, 2), (1999, 1), (999, 0)):
        monkeypatch.setattr(own_team, "free_memory", lambda free=free: free)
        training, team = made.helped()
        assert len(team.pids) == helpers
        assert same(trained(training), trained(made.alone()))
    told = [record.getMessage() for record in caplog.records if "room" in record.getMessage()]
    assert told == [f"memory has room for {n} of 3 processes" for n in (2, 1)]


@arranged
def test_a_helper_that_stands_still_costs_no_byte(
    trainer: Make, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    """It is waited for, and then ended."""
    made = trainer(**fields)
    training, team = made.helped()
    training.advance(1)
    pids = team.pids
    monkeypatch.setattr(helper_process, "_WAIT_SECONDS", 0.2)
    os.kill(pids[-1], signal.SIGSTOP)
    assert same(trained(training), trained(made.alone()))
    assert not any(map(psutil.pid_exists, pids))


@arranged
def test_a_helper_that_dies_within_a_step_costs_no_byte(
    trainer: Make, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    """The gradients that were there by then do not count."""
    made = trainer(**fields)
    training, team = made.helped()
    training.advance(1)
    compute, computed = Classification.loss, []

    def loss(*given: Any) -> Any:
        value = compute(*given)
        computed.append(value)
        if len(computed) == 1:  # the worker has its first part's, and helpers are at the others
            os.kill(team.pids[0], signal.SIGKILL)
        return value

    monkeypatch.setattr(Classification, "loss", loss)
    assert same(trained(training), trained(made.alone()))
    assert not team.is_whole


def test_the_memory_of_helpers_counts_as_their_workers(trainer: Make) -> None:
    """Memory, and no longer once they have ended."""
    sampler = SystemSampler()
    alone = sampler.sample()[1].memory_bytes
    _, team = trainer().helped()
    assert set(team.pids) <= HELPER_PIDS
    assert sampler.sample()[1].memory_bytes > alone + 50_000_000
    team.close()
    assert not HELPER_PIDS & set(team.pids)
    assert sampler.sample()[1].cpu_share >= 0
