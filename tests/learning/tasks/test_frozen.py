"""A task with frozen parameters, from its preparation to its result, on real files.

The manager's functions and the worker's are called in turn, as their processes call them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xxhash

from downpour.base.errors import FileCorrupt, OtherCode, UnfitWorker
from downpour.base.values import AttemptId, PublishedFile, Update
from downpour.cluster.manager import work
from downpour.cluster.manager.command_runner import indices_of
from downpour.cluster.manager.workspace import Workspace, open_workspace
from downpour.cluster.worker.attempt import TaskControl
from downpour.cluster.worker.task_runner import TaskRunner
from downpour.core.scheduler import outputs as out
from downpour.files.store import SharedDirectory, decode, encode
from downpour.files.store.updates import compression_of
from downpour.learning.allowlist import VARIABLE
from downpour.learning.user_code import fixed_code
from downpour.network.rpc.messages import TaskMessage
from tests.specs import plain_spec

pytestmark = pytest.mark.usefixtures("lab")

FROZEN = "0.bias"
BEGINNING = np.full(8, 0.25, np.float32)


@pytest.fixture
def begin(tmp_path: Path) -> dict[str, str]:
    """What a spec says to begin from a file, whose frozen parameters are not as drawn."""
    content = b"".join(encode({FROZEN: BEGINNING}, {}))
    path = tmp_path / "begin.safetensors"
    path.write_bytes(content)
    return {"init_from": str(path), "init_checksum": xxhash.xxh3_128_hexdigest(content)}


@pytest.fixture
def space(tmp_path: Path, begin: dict[str, str]) -> Iterator[Workspace]:
    """An experiment whose frozen parameters are from a file, and so not as drawn."""
    with opened(tmp_path, "Plane", **begin) as prepared:
        yield prepared


@contextmanager
def opened(folder: Path, task: str, **fields: object) -> Iterator[Workspace]:
    """Prepare an experiment of one of the tasks in `own_tasks.py`."""
    task = f"own_tasks:{task}"
    code = fixed_code({"task": task}, {})
    spec = plain_spec(task=task, shards=2, batch_size=16, epochs=1, code=code, **fields)
    # A damaged file is read again for half a minute, of which no test waits for any.
    shared = replace(SharedDirectory.open(folder / "shared", create=True), sleep=lambda _: None)
    space = open_workspace(shared, "plane", spec)
    space.prepared = work.prepare(space, None, out.Prepare(experiment="plane", spec=spec))
    yield space
    space.close()


def task_of(space: Workspace, shard: int) -> TaskMessage:
    """Return the message that a worker gets."""
    made = work.ready(space)
    return TaskMessage(
        id=AttemptId(experiment="plane", round=0, shard=shard, attempt=0),
        spec=space.spec_file,
        dataset=made.dataset_key,
        model=made.begun.model,
        indices=indices_of(space, shard, None),
        frozen=made.begun.frozen,
    )


def trained(space: Workspace, shard: int) -> Update:
    """Train a shard as a worker does."""
    task = task_of(space, shard)
    return TaskRunner(space.shared, "cpu").run(task, TaskControl(task.id))


def held(space: Workspace, file: PublishedFile) -> dict[str, bytes]:
    """Return the tensors of a file."""
    tensors = decode(space.store.read(file), file.name).tensors
    return {name: array.tobytes() for name, array in tensors.items()}


def folded(space: Workspace, *, whole: bool = True) -> PublishedFile:
    """Train both shards, and make the next model of them."""
    first = work.ready(space).begun.model
    pushes = tuple(
        out.Push(round=0, shard=shard, update=trained(space, shard), base=first) for shard in (0, 1)
    )
    command = out.Aggregate(
        experiment="plane",
        round=0,
        model=first,
        whole=whole,
        versions=(first,),
        pushes=pushes,
        train_seconds=1.0,
    )
    made = work.aggregate(space, command)
    assert made.outer is None
    return made.model


def test_only_what_is_trained_travels(space: Workspace) -> None:
    """Model 0, updates and the next model are without it; a file of its own holds it, once."""
    made = work.ready(space)
    assert made.begun.frozen is not None
    assert held(space, made.begun.frozen) == {FROZEN: BEGINNING.tobytes()}
    first, update = held(space, made.begun.model), trained(space, 0)
    assert first.keys() == held(space, update.file).keys() == held(space, folded(space)).keys()
    assert FROZEN not in first


def test_the_result_is_whole_and_its_adapter_lies_beside_it(space: Workspace) -> None:
    """Both are published once, however often that is asked for."""
    model = folded(space)
    asked = out.Publish(experiment=space.experiment, model=model, best=model)
    final = work.publish(space, asked)
    assert held(space, final) == held(space, model) | {FROZEN: BEGINNING.tobytes()}
    adapter = space.store.describe("adapter.safetensors")
    assert held(space, adapter) == held(space, model)
    assert held(space, space.store.describe("best.safetensors")) == held(space, final)
    assert work.publish(space, asked) == final


def test_a_damaged_version_never_becomes_a_result(space: Workspace) -> None:
    """No process compares its bytes later. The manager writes a version that it holds once more."""
    model = folded(space)
    intact, path = held(space, model), space.folder / model.name
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    asked = out.Publish(experiment=space.experiment, model=model)
    work.publish(space, asked)
    assert held(space, space.store.describe("adapter.safetensors")) == intact
    space.aggregation.versions.clear()
    with pytest.raises(FileCorrupt, match="has checksum"):
        work.publish(space, asked)


def test_the_result_of_steps_is_whole_as_well(tmp_path: Path, begin: dict[str, str]) -> None:
    """The last version is a step; what is published of it, and its adapter, are not."""
    with opened(tmp_path, "Plane", model_compression="int3", **begin) as space:
        model, first = folded(space, whole=False), work.ready(space).begun.model
        assert compression_of(decode(space.store.read(model), model.name)) == "int3"
        asked = out.Publish(experiment=space.experiment, model=model, leading=(first,))
        final = work.publish(space, asked)
        space.aggregation.versions.clear()
        followed = space.aggregation.versions.read_after((first,), model).tensors
        wanted = {name: array.tobytes() for name, array in followed.items()}
        assert held(space, final) == wanted | {FROZEN: BEGINNING.tobytes()}
        assert held(space, space.store.describe("adapter.safetensors")) == wanted
        assert work.publish(space, asked) == final


def test_tied_weights_travel_once_and_the_result_has_both_names(tmp_path: Path) -> None:
    """The file apart from the versions says which names they leave out; nothing is an adapter."""
    with opened(tmp_path, "Tied") as space:
        made = work.ready(space)
        assert made.begun.frozen is not None
        apart = decode(space.store.read(made.begun.frozen), made.begun.frozen.name)
        assert (apart.tensors, apart.metadata) == ({}, {"2.weight": "0.weight"})
        model = folded(space)
        assert held(space, made.begun.model).keys() == held(space, model).keys() == {"0.weight"}
        asked = out.Publish(experiment=space.experiment, model=model)
        final = held(space, work.publish(space, asked))
        weights = held(space, model)["0.weight"]
        assert final == {"0.weight": weights, "2.weight": weights}
        assert "adapter.safetensors" not in space.store.list()
        space.global_model = None
        assert work.measure(space, evaluation_of(model)).samples == 60


def evaluation_of(model: PublishedFile) -> out.Evaluate:
    """Ask for a model's evaluation."""
    return out.Evaluate(experiment="frozen", round=0, model=model)


def test_another_manager_evaluates_with_what_was_frozen(space: Workspace) -> None:
    """It draws its own network, of which only the frozen parameters are not as they were."""
    model = folded(space)
    assert space.prepared is not None
    space.global_model = space.prepared.begun.drawn
    expected = work.measure(space, evaluation_of(model))
    space.global_model = None
    found = work.measure(space, evaluation_of(model))
    assert (found.loss, found.metrics) == (expected.loss, expected.metrics)
    alone = replace(space.prepared.begun, frozen=None)
    space.global_model, space.prepared = None, replace(space.prepared, begun=alone)
    assert work.measure(space, evaluation_of(model)).loss != expected.loss


def test_a_worker_that_cannot_make_the_task_is_unfit_for_it(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one may: it lacks the permission, the module, or the examples."""
    task = task_of(space, 0)
    runner = TaskRunner(space.shared, "cpu")
    with monkeypatch.context() as patch:
        patch.setenv(VARIABLE, "elsewhere")
        with pytest.raises(UnfitWorker, match="DOWNPOUR_ALLOW allows modules under elsewhere"):
            runner.run(task, TaskControl(task.id))
    with monkeypatch.context() as patch:
        patch.setattr("own_tasks.EXAMPLES", 50)
        with pytest.raises(UnfitWorker, match="has 50 train examples here, but 60 elsewhere"):
            runner.run(task, TaskControl(task.id))
    assert runner.run(task, TaskControl(task.id)).samples == 30


def test_a_worker_with_other_code_takes_nothing(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digest of the task's file is part of the spec."""
    task = task_of(space, 0)
    monkeypatch.setattr(
        "downpour.cluster.worker.task_runner.ResolvedSpec.from_toml",
        lambda _: space.spec.replace(code={"own_tasks.py": "0" * 16}),
    )
    with pytest.raises(OtherCode, match=r"own_tasks\.py"):
        TaskRunner(space.shared, "cpu").run(task, TaskControl(task.id))
