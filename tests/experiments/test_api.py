"""`downpour.run` and `downpour.Client` as a user meets them: real processes, sockets and files."""

import hashlib
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from safetensors.numpy import load_file

import downpour
from downpour.base.errors import DeadlineExceeded, ExperimentFailed, NotBegun, SpecError
from downpour.cluster.options import ManagerOptions
from downpour.core.families import AGGREGATORS, CODECS, POLICIES
from downpour.core.resolve import resolve
from downpour.experiments import training
from downpour.experiments.client import spec_of
from downpour.experiments.surroundings import Surroundings
from downpour.experiments.training import embed
from downpour.launchers import LaunchPlan, LocalCluster
from downpour.learning.accelerators import devices_here
from downpour.network.rpc.messages import Status

pytestmark = pytest.mark.usefixtures("forked_clusters")

QUICK = downpour.Spec(
    name="quick",
    shards=3,
    epochs=3,
    meet=1,
    batch_size=32,
    learning_rate=0.05,
    momentum=0.9,
    seed=7,
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One shared directory for all, as a user would keep one."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def seen() -> list[Status]:
    """What the progress callback was shown."""
    return []


@pytest.fixture(scope="module")
def result(shared: Path, seen: list[Status]) -> downpour.Result:
    """A whole run of three epochs with two workers."""
    return downpour.run(QUICK, workers=2, shared=shared, on_status=seen.append)


def test_a_run_ends_with_a_result_for_every_epoch(result: downpour.Result) -> None:
    """Accuracy, losses and seconds are there for each epoch, accuracy per class too."""
    assert result.state == "finished"
    assert [epoch.epoch for epoch in result.rounds] == [1, 2, 3]
    for epoch in result.rounds:
        assert epoch.accuracy is not None
        assert 0 <= epoch.accuracy <= 1
        assert len(epoch.class_accuracy) == 10
        assert epoch.train_seconds > 0
        assert epoch.aggregate_seconds > 0
    assert result.split_seconds is not None
    assert not math.isnan(result.total_seconds or math.nan)


def test_a_run_learns(result: downpour.Result) -> None:
    """Three short epochs are enough to be far above chance."""
    assert result.accuracy is not None
    assert result.accuracy > 0.5


def test_every_shard_was_trained_once_an_epoch(result: downpour.Result) -> None:
    """Nine tasks, one for each shard and epoch; a worker that starts late may get none."""
    tasks = sorted((task.epoch, task.shard) for task in result.tasks)
    assert tasks == [(epoch, shard) for epoch in (1, 2, 3) for shard in (0, 1, 2)]
    assert {task.worker for task in result.tasks} <= {"worker-1", "worker-2"}


def test_the_model_is_a_file_that_others_can_load(result: downpour.Result) -> None:
    """The safetensors library reads the final model."""
    assert result.model_file is not None
    tensors = load_file(result.model_file)
    assert all(name and tensor.size for name, tensor in tensors.items())


def test_progress_was_shown_along_the_way(result: downpour.Result, seen: list[Status]) -> None:
    """The callback saw the experiment run, and saw it end."""
    states = [status.experiment.state for status in seen if status.experiment]
    assert "running" in states
    assert states[-1] == result.state


def test_a_result_loads_as_a_data_frame(result: downpour.Result) -> None:
    """One row an epoch, one row a task."""
    pytest.importorskip("pandas", reason="pandas is not installed")
    assert len(result.to_frame()) == 3
    assert len(result.tasks_frame()) == 9


def test_a_result_is_read_again_from_its_folder(result: downpour.Result, shared: Path) -> None:
    """What stands in the shared directory is the same result."""
    folder = shared / "experiments" / result.experiment
    assert downpour.Result.read(folder).to_dict() == result.to_dict()


def test_what_only_the_data_can_tell_is_told_in_one_line(shared: Path) -> None:
    """More classes than a balanced batch holds: nothing is begun or left, and the user can act."""
    before = sorted(shared.glob("experiments/*"))
    with pytest.raises(NotBegun, match=r"^batches = 'balanced'") as failed:
        downpour.run(QUICK.replace(batches="balanced", batch_size=4), workers=1, shared=shared)
    assert failed.value.exit_status == 2
    assert "\n" not in str(failed.value)
    assert sorted(shared.glob("experiments/*")) == before


def test_a_spec_may_be_given_as_people_have_it(tmp_path: Path) -> None:
    """As a value, by its fields, or as the path of a file."""
    file = tmp_path / "quick.toml"
    file.write_text(QUICK.to_toml())
    for asked in (QUICK, QUICK.model_dump(), file, str(file)):
        assert spec_of(asked) == QUICK


@pytest.mark.slow
def test_the_environment_names_the_shared_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it does for the commands."""
    monkeypatch.setenv("DOWNPOUR_SHARED", str(tmp_path / "there"))
    result = downpour.run({"shards": 1, "epochs": 1}, workers=1, on="inline")
    assert result.model_file is not None
    assert tmp_path / "there" in result.model_file.parents
    assert downpour.Result.read(str(result.model_file.parent)) == result


def test_the_environment_names_the_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    """An invalid address is refused, wherever it was given."""
    monkeypatch.setenv("DOWNPOUR_MANAGER", "host:port")
    with pytest.raises(SpecError, match="manager = 'host:port'"):
        downpour.Client()


def test_tab_shows_what_there_is() -> None:
    """Also names that were not imported yet."""
    assert {"run", "Spec", "Client", "Result"} <= set(dir(downpour))


def digest(result: downpour.Result) -> str:
    """Return the checksum of a final model's bytes."""
    assert result.model_file is not None
    return hashlib.sha256(result.model_file.read_bytes()).hexdigest()


Trained = Callable[[downpour.Spec, int], downpour.Result]
"""Trains a spec with a number of workers."""


@pytest.fixture(scope="module")
def three(
    tmp_path_factory: pytest.TempPathFactory, forked_clusters: None
) -> Iterator[downpour.Client]:
    """A client of a cluster whose three workers are processes."""
    del forked_clusters
    surroundings = Surroundings(tmp_path_factory.mktemp("three"))
    with embed(QUICK, 3, surroundings) as (_, client):
        next(status for status in client.watch() if len(status.workers) == 3)
        yield client


@pytest.fixture
def trained(three: downpour.Client, tmp_path: Path) -> Trained:
    """Train with three workers as processes; with other numbers as threads, which start sooner."""

    def train(spec: downpour.Spec, workers: int) -> downpour.Result:
        if workers == 3:
            return three.wait(three.submit(spec))
        return downpour.run(spec, workers=workers, shared=tmp_path, progress=False, on="inline")

    return train


@pytest.mark.slow
def test_the_model_does_not_depend_on_who_trains_what(trained: Trained) -> None:
    """Ten shards give the same bytes with 1, 2, 3 and 10 workers, balanced or not."""
    spec = QUICK.replace(shards=10, optimizer="adam", learning_rate=0.002, momentum=0.0)
    results = {workers: trained(spec, workers) for workers in (1, 2, 3, 10)}
    assert len(set(map(digest, results.values()))) == 1
    assert len({task.worker for task in results[3].tasks}) == 3  # all were there from the start


@pytest.mark.slow
@pytest.mark.skipif(bool(devices_here().accelerators), reason="auto is no CPU here")
@pytest.mark.parametrize("on", ["local", "inline"])
def test_auto_on_a_machine_without_accelerators_is_the_cpu(
    tmp_path: Path, on: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With the bytes of the CPU, as one line says; the processes of each class are told, too."""
    caplog.set_level(logging.INFO, training.__name__)
    runs = [
        downpour.run(
            QUICK.replace(epochs=1, device=device),
            workers=1,
            shared=tmp_path,
            on=on,
            progress=False,
        )
        for device in ("cpu", "auto")
    ]
    assert digest(runs[0]) == digest(runs[1])
    assert runs[0].numeric_classes == runs[1].numeric_classes
    told = [line for line in caplog.messages if line.startswith("device")]
    assert told == ["device = auto: cpu"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer_state": "keep"},
        {"compression": "topk", "optimizer_state": "keep"},
        {"compression": "bfloat16", "aggregate": "weighted"},
        {"split": "class", "aggregate": "weighted"},
        {"split": "dirichlet(0.5)", "aggregate": "samples"},
        {"precision": "bfloat16", "flip": True},
        {"model": "mlp", "batches": "balanced"},
    ],
)
def test_the_same_spec_gives_the_same_bytes(trained: Trained, changes: dict[str, object]) -> None:
    """For every spec, another number of workers gives the same model."""
    spec = QUICK.replace(epochs=2, model_options={}, **changes)
    digests = {digest(trained(spec, workers)) for workers in (1, 3)}
    assert len(digests) == 1


TOGETHER: dict[str, tuple[object, ...]] = {
    "accumulate": (2, 3),
    "aggregate": AGGREGATORS.examples,
    "batches": ("shuffled", "balanced"),
    "channels_last": (True, False),
    "clip_norm": (1.0,),
    "compression": CODECS.accepted,
    "evaluate_every": (2,),
    "flip": (True,),
    "keep_best": ("loss", "accuracy"),
    "last_batch": ("rest",),
    "local_steps": (3,),
    "meet": (2, "auto"),
    "model": ("mlp",),
    "model_compression": CODECS.accepted,
    "nesterov": (True,),
    "optimizer": ("adam", "adamw"),
    "optimizer_state": ("keep", "reset"),
    "outer": tuple({"optimizer": name} for name in ("sgd", "heloco", "adam", "yogi")),
    "overlap": (1,),
    "policy": tuple(name for name in POLICIES.accepted if POLICIES[name].preserves_bytes),
    "precision": ("bfloat16",),
    "scale_rate": (True,),
    "schedule": ("cosine", "linear", "step"),
    "split": ("class", "equal", "dirichlet(0.5)"),
    "stop_after": (1,),
    "validation": (0.2,),
    "warmup": (0.5,),
    "weight_decay": (0.01,),
}
"""Values that keep the promise of the same bytes, each beside any others that it goes with."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_values_at_random_give_the_same_bytes_together(trained: Trained, seed: int) -> None:
    """Eight fields at once; values that contradict each other are drawn again."""
    random, resolved = Random(seed), None
    while resolved is None:
        names = random.sample(sorted(TOGETHER), 8)
        fields = {name: random.choice(TOGETHER[name]) for name in names}
        with suppress(SpecError):
            spec = QUICK.replace(epochs=2, learning_rate=0.01, **fields)
            resolved = resolve(spec, 1)
    digests = {digest(trained(spec, workers)) for workers in (1, 3)}
    assert len(digests) == 1, fields


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["int8", "ternary", "topk"])
def test_a_compressed_training_has_the_same_bytes_whoever_trains(
    trained: Trained, compression: str
) -> None:
    """Seven shards, of which each goes from worker to worker with what it has not sent."""
    spec = QUICK.replace(shards=7, epochs=3, compression=compression)
    results = [trained(spec, workers) for workers in (1, 3, 7)]
    assert len({digest(result) for result in results}) == 1
    plain = trained(spec.replace(compression="none"), 3)
    assert digest(plain) != digest(results[0])
    said = results[0].dataset[-1]
    # Their headers have numbers as text, padded, so sizes differ by 8; the largest counts.
    largest = max(task.bytes for task in results[0].tasks)
    assert said.startswith(f"updates ({compression}): {largest:,} bytes each, ")
    assert not any("updates (" in line for line in plain.dataset)


@pytest.mark.slow
def test_a_client_submits_watches_and_cancels(tmp_path: Path) -> None:
    """A client of a running cluster sees its experiments through."""
    options = ManagerOptions(shared=str(tmp_path), port=0)
    with (
        LocalCluster(LaunchPlan(options, workers=2)) as cluster,
        downpour.Client(cluster.address, shared=tmp_path) as client,
    ):
        first = client.submit(QUICK)
        endless = client.submit(QUICK.replace(epochs=1000))
        assert client.wait(first).model_file is not None
        client.cancel(endless)
        with pytest.raises(ExperimentFailed, match="cancelled"):
            client.wait(endless)
        states = {one.experiment: one.state.value for one in client.experiments()}
        assert states == {first: "finished", endless: "cancelled"}
        assert client.results(first).accuracy == client.wait(first).accuracy


class Drowsy:
    """A manager that answers every other time, and otherwise takes too long."""

    def __init__(self) -> None:
        self.calls = 0

    def status(self, experiment: str, after_change: int, wait_seconds: float) -> Status:
        del experiment, wait_seconds
        self.calls += 1
        if self.calls % 2 == 0:
            raise DeadlineExceeded("status took longer than 1 s")
        return Status(change=after_change + 1)


def test_who_watches_waits_for_a_slow_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that takes too long is taken again, after asking whether the cluster still lives."""
    monkeypatch.setattr("time.sleep", lambda _: None)
    checks: list[int] = []
    client = downpour.Client("nowhere:1")
    client._manager = Drowsy()  # type: ignore[assignment]
    looks = client.watch(check=lambda: checks.append(1))
    assert [next(looks).change for _ in range(3)] == [1, 2, 3]
    assert len(checks) > 2


def test_meetings_that_follow_from_the_examples_are_a_number_of_rounds(shared: Path) -> None:
    """`meet = "auto"` trains to the bytes of the number that it becomes."""

    def trained(**fields: object) -> bytes:
        spec = QUICK.replace(epochs=1, **fields)
        ended = downpour.run(spec, workers=1, shared=shared, on="inline", progress=False)
        assert (ended.spec["meet"], len(ended.rounds), len(ended.epochs)) == (4, 4, 1)
        assert ended.model_file is not None
        return ended.model_file.read_bytes()

    assert trained(meet="auto") == trained(meet=4)
