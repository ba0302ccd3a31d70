"""One task from its message to its update, on real files and a real network."""

import errno
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from secrets import token_hex

import numpy as np
import psutil
import pytest

from downpour.base.errors import (
    FileCorrupt,
    FileMissing,
    OtherCode,
    SpecError,
    TrainingError,
    UnfitWorker,
)
from downpour.base.values import PublishedFile, TrialSums, Update
from downpour.cluster.worker.attempt import (
    HandOverStop,
    TaskCancelled,
    TaskControl,
    blaming_packages,
    in_one_line,
    part_of,
)
from downpour.cluster.worker.task_runner import TaskRunner, _repeat
from downpour.core.resolve import resolve
from downpour.core.spec import Spec
from downpour.files.compression import CODECS
from downpour.files.store import (
    SharedDirectory,
    decode,
    decompressed,
    encode,
    model_metadata,
    unsent_part,
)
from downpour.learning.datasets import array_folder, digests, prepare
from downpour.learning.intra_worker import helper_process
from downpour.learning.numerics import numeric_class
from downpour.learning.tasks.agreement import open_data, prepare_data
from downpour.learning.tasks.loaded import load
from downpour.learning.training import repeating
from downpour.network.rpc.messages import Indices, IndicesFile, TaskMessage, pack_indices
from tests.cluster.worker.conftest import Trainable
from tests.conftest import Allow
from tests.specs import plain_spec


@pytest.fixture(scope="module")
def shared(trainable: Trainable) -> SharedDirectory:
    """The shared directory of the task."""
    return trainable.shared


@pytest.fixture(scope="module")
def task(trainable: Trainable) -> TaskMessage:
    """The first task of shard 0."""
    return trainable.task


def content(shared: SharedDirectory, file: PublishedFile) -> bytes:
    """Return a published file's bytes, verified."""
    return bytes(shared.store("any").read(file))


def test_a_task_publishes_its_update(shared: SharedDirectory, task: TaskMessage) -> None:
    """The update holds other parameters than the model, and says what was done for it."""
    control = TaskControl(task.id)
    update = TaskRunner(shared, "cpu").run(task, control)
    assert (update.samples, update.steps) == (100, 7)
    assert (control.steps_done, control.steps_total) == (7, 7)
    assert update.loss > 0
    before = decode(content(shared, task.model), "model").tensors
    after = decode(content(shared, update.file), "update").tensors
    assert before.keys() == after.keys()
    assert any(not np.array_equal(before[name], after[name]) for name in before)
    assert update.optimizer_state is not None


def test_equal_tasks_publish_equal_bytes(
    shared: SharedDirectory, task: TaskMessage, whole: Update
) -> None:
    """Another runner, and another attempt, make the same update."""
    again = replace(task, id=replace(task.id, attempt=1))
    other = TaskRunner(shared, "cpu").run(again, TaskControl(again.id))
    assert other.file.name != whole.file.name
    assert other.file.checksum == whole.file.checksum


def test_a_dataset_that_was_made_again_is_opened_again(
    shared: SharedDirectory, task: TaskMessage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """After one failure: a restarted manager replaces one that is damaged, while workers map it."""
    monkeypatch.setattr(array_folder, "WHOLE_BYTES", 0)
    monkeypatch.setattr(digests, "BLOCK_BYTES", 1024)
    shared = replace(shared, datasets_at=tmp_path)
    key = prepare(Spec.from_toml(content(shared, task.spec).decode()), tmp_path)
    runner = TaskRunner(shared, "cpu")

    def trained(number: int) -> int:
        indices = np.arange(100) + number * 100
        asked = replace(task, id=replace(task.id, attempt=number), dataset=key, indices=indices)
        return runner.run(asked, TaskControl(asked.id)).samples

    assert trained(2) == 100
    shutil.copytree(tmp_path / key, tmp_path / "again")
    shutil.rmtree(tmp_path / key)
    (tmp_path / "again").rename(tmp_path / key)
    with pytest.raises(FileCorrupt, match="has been replaced"):
        trained(3)
    assert trained(4) == 100


def sharing(shared: SharedDirectory, task: TaskMessage) -> TaskMessage:
    """Return the task of a spec whose batches are shared among two processes."""
    spec = Spec.from_toml(content(shared, task.spec).decode())
    shares = spec.replace(inside={"processes": 2}).to_toml().encode()
    return replace(task, spec=shared.store("any").put_new(f"spec-{token_hex(3)}.toml", [shares]))


def test_a_worker_of_one_process_computes_all_parts(
    shared: SharedDirectory, task: TaskMessage
) -> None:
    """What the spec shares among two, it does by itself: no helper is started."""
    asked = sharing(shared, task)
    before = psutil.Process().children()
    runner = TaskRunner(shared, "cpu", processes=1)
    update = runner.run(asked, TaskControl(asked.id))
    assert (update.steps, update.processes, update.shortages) == (7, 1, 0)
    assert psutil.Process().children() == before


@pytest.mark.slow
def test_an_update_says_that_memory_was_too_small(
    shared: SharedDirectory, task: TaskMessage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many processes computed it, and how often fewer had to: the bytes are the same."""
    asked = sharing(shared, task)
    runner = TaskRunner(shared, "cpu")
    updates = [runner.run(asked, TaskControl(asked.id))]
    assert runner._loaded is not None
    team = runner._loaded.team
    assert team is not None
    team.wait_until_ready(60.0)
    updates.append(runner.run(asked, TaskControl(asked.id)))
    monkeypatch.setattr(helper_process, "kills", lambda: 1 << 40)
    os.kill(team.pids[0], signal.SIGKILL)
    updates += [runner.run(asked, TaskControl(asked.id)) for _ in range(2)]
    runner.close()
    assert [one.processes for one in updates[1:]] == [2, 1, 1]
    assert [one.shortages for one in updates] == [0, 0, 1, 1]
    assert len({one.file.checksum for one in updates}) == 1


def test_a_kept_optimizer_state_is_continued(
    shared: SharedDirectory, task: TaskMessage, whole: Update
) -> None:
    """With the state of the round before, the next round comes out differently than without."""
    runner = TaskRunner(shared, "cpu")
    bare = replace(task, id=replace(task.id, round=1), model=whole.file)
    continued = replace(bare, optimizer_state=whole.optimizer_state)
    without, with_state = (runner.run(t, TaskControl(t.id)) for t in (bare, continued))
    assert without.file.checksum != with_state.file.checksum


def test_a_worker_reads_nothing_that_it_has_just_published(
    shared: SharedDirectory, task: TaskMessage
) -> None:
    """If its update is the next version, it goes on without files; a second try reads others."""
    runner = TaskRunner(shared, "cpu")
    first = runner.run(task, TaskControl(task.id))
    model = shared.store("any").link(first.file, f"model-{token_hex(3)}")
    following = replace(
        task, id=replace(task.id, round=1), model=model, optimizer_state=first.optimizer_state
    )
    expected = TaskRunner(shared, "cpu").run(following, TaskControl(following.id))
    gone = replace(following, model=replace(model, name="gone"))
    assert runner.run(gone, TaskControl(gone.id)).file.checksum == expected.file.checksum
    with pytest.raises(FileMissing, match="gone"):
        runner.run(gone, TaskControl(gone.id))


def test_a_worker_does_not_read_the_first_version_which_it_draws_itself(
    shared: SharedDirectory, task: TaskMessage, whole: Update
) -> None:
    """If versions are steps, so that it keeps one in memory; another network is read."""
    drawn = compressed(shared, task, "none", model_compression="int3")
    shared.store("any").delete(drawn.model.name)
    update = TaskRunner(shared, "cpu").run(drawn, TaskControl(drawn.id))
    assert update.loss == whole.loss
    other = replace(drawn, model=replace(drawn.model, checksum="0" * 32))
    with pytest.raises(FileMissing):
        TaskRunner(shared, "cpu").run(other, TaskControl(other.id))


def compressed(
    shared: SharedDirectory, task: TaskMessage, compression: str, **fields: str
) -> TaskMessage:
    """Return a first task of an experiment whose updates are compressed, and state is reset."""
    store = shared.store("any")
    spec = Spec.from_toml(content(shared, task.spec).decode())
    fields |= {"compression": compression, "optimizer_state": "reset"}
    text = spec.replace(**fields).to_toml().encode()
    tensors = decode(content(shared, task.model), "model").tensors
    token = f"{compression}-{token_hex(3)}"
    return replace(
        task,
        spec=store.put_new(f"spec-{token}", [text]),
        model=store.put_new(f"model-{token}", encode(tensors, model_metadata([]))),
    )


@pytest.mark.parametrize("compression", CODECS)
def test_a_compressed_update_holds_the_difference_that_training_made(
    shared: SharedDirectory, task: TaskMessage, whole: Update, compression: str
) -> None:
    """It is much smaller, and near to what the whole one says; only some leave a state behind."""
    less = compressed(shared, task, compression)
    update = TaskRunner(shared, "cpu").run(less, TaskControl(less.id))
    assert update.loss == whole.loss
    codec = CODECS[compression]
    assert (update.optimizer_state is not None) == (codec.feedback is not None)
    before = decode(content(shared, task.model), "model").tensors
    after = decode(content(shared, whole.file), "whole").tensors
    sent = dict(decompressed(decode(content(shared, update.file), "update")))
    assert sent.keys() == before.keys()
    due = np.concatenate([(before[name] - after[name]).ravel() for name in sent])
    found = np.concatenate([one.ravel() for one in sent.values()])
    lost = np.linalg.norm(due - found) / np.linalg.norm(due)
    few = {"int3": 0.6, "terngrad": 1.6, "ternary": 0.6, "topk": 0.99}
    assert lost < few.get(compression, 0.02)
    if update.optimizer_state is not None:
        state = decode(content(shared, update.optimizer_state), "state").tensors
        left = unsent_part(state, before)
        unsent = np.concatenate([left[name] for name in sent])
        np.testing.assert_allclose(found + unsent, due, atol=np.abs(due).max() / 200)


@pytest.mark.parametrize("compression", [name for name, codec in CODECS.items() if codec.feedback])
def test_the_unsent_part_is_sent_by_the_shards_next_task(
    shared: SharedDirectory, task: TaskMessage, compression: str
) -> None:
    """With other bytes than without it; the same on every worker, from a snapshot, too."""
    first = compressed(shared, task, compression)
    begun = TaskRunner(shared, "cpu").run(first, TaskControl(first.id))
    bare = replace(first, id=replace(first.id, round=1))
    then = replace(bare, optimizer_state=begun.optimizer_state)
    without, one = (TaskRunner(shared, "cpu").run(t, TaskControl(t.id)) for t in (bare, then))
    assert without.file.checksum != one.file.checksum
    stopped = TaskControl(then.id)
    stopped.save_and_stop()
    with pytest.raises(HandOverStop) as handed_over:
        TaskRunner(shared, "cpu").run(then, stopped)
    moved = replace(then, id=replace(then.id, attempt=1), snapshot=handed_over.value.snapshot)
    other = TaskRunner(shared, "cpu").run(moved, TaskControl(moved.id))
    assert one.optimizer_state is not None
    assert other.optimizer_state is not None
    assert other.file.checksum == one.file.checksum
    assert other.optimizer_state.checksum == one.optimizer_state.checksum


def test_a_file_of_indices_is_read_once(shared: SharedDirectory, task: TaskMessage) -> None:
    """Its worker trains an epoch's later meetings to the bytes of workers that are sent the list.

    It needs neither the file nor its name, and mistakes no other indices or experiment for these.
    Another worker names the file that is altered or gone.
    """
    store, (width, packed) = shared.store("any"), pack_indices(np.arange(100))
    spec, twin = (
        Spec.from_toml(content(shared, task.spec).decode()),
        shared.create_experiment("twin"),
    )
    twin.put_new(task.model.name, [content(shared, task.model)])
    specs = {
        name: at.put_new("spec-2.toml", [spec.replace(meet=2, seed=seed).to_toml().encode()])
        for seed, (name, at) in enumerate({"any": store, "twin": twin}.items())
    }
    file = store.put_new("indices-0", [packed])
    held = IndicesFile(width_bytes=width, count=100, file=file)

    def trained(runner: TaskRunner, indices: Indices, round_: int, name: str = "any") -> str:
        number = replace(task.id, experiment=name, round=round_)
        asked = replace(task, id=number, spec=specs[name], indices=indices)
        return runner.run(asked, TaskControl(asked.id)).file.checksum

    def new() -> TaskRunner:
        return TaskRunner(shared, "cpu")

    runner = new()
    assert trained(runner, held, 0) == trained(new(), np.arange(100), 0)
    (shared.experiment_path("any") / file.name).write_bytes(bytes(file.size_bytes))
    with pytest.raises(FileCorrupt, match="indices-0"):
        trained(new(), held, 1)
    store.delete(file.name)
    with pytest.raises(FileMissing, match="indices-0"):
        trained(new(), held, 1)
    again = replace(held, file=replace(file, name="indices-1"))
    assert part_of(replace(task, indices=again)) == part_of(replace(task, indices=held))
    assert trained(runner, again, 1) == trained(new(), np.arange(100), 1)
    others = np.arange(100, 200)
    assert trained(runner, others, 1) == trained(new(), others, 1)
    with pytest.raises(FileMissing):
        trained(runner, replace(held, width_bytes=4, count=50), 1)
    assert trained(runner, others, 1, "twin") == trained(new(), others, 1, "twin")


def test_a_cancelled_task_publishes_nothing(shared: SharedDirectory, task: TaskMessage) -> None:
    """It ends before its next step."""
    before = shared.store("any").list()
    control = TaskControl(task.id)
    control.stop()
    with pytest.raises(TaskCancelled):
        TaskRunner(shared, "cpu").run(task, control)
    assert shared.store("any").list() == before


def test_a_dataset_that_is_seen_late_is_waited_for(
    shared: SharedDirectory, task: TaskMessage
) -> None:
    """As every other file that another machine has made."""
    elsewhere = shared.root / "elsewhere"
    (shared.datasets / task.dataset).rename(elsewhere)

    def appears(_seconds: float) -> None:
        if elsewhere.exists():
            elsewhere.rename(shared.datasets / task.dataset)

    late = replace(shared, sleep=appears)
    assert TaskRunner(late, "cpu").run(task, TaskControl(task.id)).samples == 100


@pytest.mark.parametrize("call", ["open", "link"])
def test_a_directory_that_is_away_is_waited_for_as_long_as_the_attempt_is_wanted(
    shared: SharedDirectory, task: TaskMessage, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Longer than any patience with a file; neither reading nor publishing loses the attempt."""
    waits: list[float] = []
    works = getattr(os, call)

    def away(*_: object, **__: object) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 200:
            monkeypatch.setattr(os, call, works)

    calm = replace(task, snapshot=None)
    monkeypatch.setattr(os, call, away)
    runner = TaskRunner(replace(shared, patience_seconds=5.0, sleep=wait), "cpu")
    assert runner.run(calm, TaskControl(calm.id)).samples == 100
    assert sum(waits) > 180


@pytest.mark.parametrize("missing", ["file", "directory"])
def test_an_attempt_that_is_taken_back_waits_for_no_file_and_no_directory(
    shared: SharedDirectory, task: TaskMessage, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    """Either may be on its way, but the attempt's worker is free for another one."""
    control = TaskControl(task.id)

    def away(*_: object, **__: object) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    if missing == "file":
        task = replace(task, model=replace(task.model, name="model-000009-gone.safetensors"))
    else:
        monkeypatch.setattr(os, "open", away)
    waiting = replace(shared, patience_seconds=3600, sleep=lambda _: control.stop())
    with pytest.raises(TaskCancelled):
        TaskRunner(waiting, "cpu").run(task, control)


def test_an_altered_model_is_noticed(shared: SharedDirectory, task: TaskMessage) -> None:
    """A task never trains from bytes that are not what the manager named."""
    altered = replace(task.model, checksum="0" * 32)
    with pytest.raises(FileCorrupt):
        TaskRunner(shared, "cpu").run(replace(task, model=altered), TaskControl(task.id))


@pytest.mark.parametrize(
    ("asked", "own"), [("cuda", "cpu"), ("cuda:1", "cuda:0"), ("cuda:1", "cuda"), ("mps", "xpu")]
)
def test_a_worker_with_another_device_says_so(
    shared: SharedDirectory, task: TaskMessage, asked: str, own: str
) -> None:
    """A task for CUDA is not for a worker on the CPU; the manager gives it nothing more of that."""
    name = f"{asked}-{own}".replace(":", "")
    store = shared.create_experiment(name)
    spec = store.put_new("spec.toml", [resolve(Spec(device=asked), 2).to_toml().encode()])
    other = replace(task, id=replace(task.id, experiment=name), spec=spec)
    with pytest.raises(UnfitWorker, match=f"trains on the {own}; start it with --device {asked}"):
        TaskRunner(shared, own).run(other, TaskControl(other.id))


def test_a_task_for_the_cpu_is_for_every_worker(
    shared: SharedDirectory, task: TaskMessage, whole: Update
) -> None:
    """A worker's accelerator does not have to be there for it."""
    update = TaskRunner(shared, "cuda:1").run(task, TaskControl(task.id))
    assert update.file.checksum == whole.file.checksum


def test_other_code_than_was_submitted_is_refused_and_named(
    shared: SharedDirectory, task: TaskMessage, tmp_path: Path, allowing: Allow
) -> None:
    """Before it is imported, and before anything of the task is read."""
    (tmp_path / "their_nets.py").write_text("raise SystemExit('this must not be imported')")
    allowing(tmp_path, "their_nets")
    spec = Spec.from_toml(content(shared, task.spec).decode()).replace(
        model="their_nets:build", code={"their_nets.py": "0" * 16}
    )
    file = shared.store("any").put_new("their-spec.toml", [spec.to_toml().encode()])
    other = replace(task, id=replace(task.id, experiment="any"), spec=file)
    with pytest.raises(OtherCode, match=r"their_nets\.py has changed since"):
        TaskRunner(shared, "cpu").run(other, TaskControl(other.id))


def test_other_versions_of_packages_are_told_and_trained_with(
    shared: SharedDirectory, task: TaskMessage, caplog: pytest.LogCaptureFixture
) -> None:
    """A line for each, once per experiment; the next experiment has none."""
    store, runner = shared.store("any"), TaskRunner(shared, "cpu")
    spec = Spec.from_toml(content(shared, task.spec).decode())
    noted = spec.replace(packages={"numpy": np.__version__, "torch": "1.0"}).to_toml().encode()
    other = replace(task, spec=store.put_new(f"spec-{token_hex(3)}.toml", [noted]))
    for attempt in (3, 4):
        runner.run(replace(other, id=replace(task.id, attempt=attempt)), TaskControl(task.id))
    (told,) = runner.differs
    assert told.startswith("torch ")
    assert told.endswith(", the manager 1.0")
    assert caplog.text.count(f"this worker has {told}") == 1
    runner.close()
    runner.run(replace(task, id=replace(task.id, attempt=5)), TaskControl(task.id))
    assert runner.differs == ()


def test_an_import_that_fails_is_the_machines_fault_where_packages_differ() -> None:
    """Another worker may have what it lacks; other errors are the task's, on every machine."""

    def fails(error: Exception) -> None:
        raise SpecError("task", "lab:Mine", 'examples("train") fails') from error

    lacks = ("no fancy, the manager 1.0",)
    line = r"fails; this worker has no fancy, the manager 1\.0$"
    with pytest.raises(UnfitWorker, match=line), blaming_packages(lacks):
        fails(ModuleNotFoundError("No module named 'fancy'"))
    for differs, error in (((), ModuleNotFoundError()), (lacks, ValueError())):
        with pytest.raises(SpecError), blaming_packages(differs):
            fails(error)


def test_a_worker_that_differs_from_two_processes_of_the_manager_is_unfit(
    tmp_path: Path, allowing: Allow
) -> None:
    """Its machine computes wrong. If only one process has tried, the task may be to blame."""
    allowing(Path(__file__).parents[2] / "learning" / "training", "process_tasks")
    spec = plain_spec(task="process_tasks:Plain", shards=1, batch_size=4)
    data = open_data(spec, tmp_path, prepare_data(spec, tmp_path))
    trial, wrong = (
        TrialSums(
            numeric_class=str(numeric_class("cpu")),
            looks=repeating.in_short(repeating.decided(load(spec.replace(seed=seed), data)) or []),
            rehearsed=True,
        )
        for seed in (0, 1)
    )
    assert _repeat(load(spec, data), trial, ()) == trial.looks[-1]
    with pytest.raises(UnfitWorker, match="computes other bytes than the manager: its state diff"):
        _repeat(load(spec, data), wrong, ())
    with pytest.raises(SpecError, match="gives different bytes in another process: its state diff"):
        _repeat(load(spec, data), replace(wrong, rehearsed=False), ())


def test_an_error_of_the_users_is_told_with_its_line_and_where_its_traceback_is() -> None:
    """Equal errors read alike on every worker; what Downpour raises says all there is."""
    with pytest.raises(ZeroDivisionError) as error:
        _ = 1 // 0
    told = in_one_line(error.value)
    assert told.startswith("ZeroDivisionError: ")
    assert "(test_task_runner.py:" in told
    assert told.endswith("; the worker's log has the traceback")
    assert in_one_line(TrainingError("no memory")) == "no memory"
