"""A real manager over real sockets and files; its workers are fakes that train nothing."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

from downpour.base.errors import IncompatiblePeer, Refused, SharedDirectoryError, SpecError
from downpour.base.states import ExperimentState, FailureKind
from downpour.base.values import (
    AttemptId,
    Forecast,
    ProcessState,
    Progress,
    PublishedFile,
    SystemState,
    Update,
)
from downpour.cluster.manager.options import ManagerOptions
from downpour.cluster.manager.process import start_manager
from downpour.core.scheduler import events as on
from downpour.files.store import decode, layout
from downpour.network.rpc.messages import Heartbeat, TaskMessage
from tests.cluster.manager.conftest import CALM, SMALL


def test_two_rounds_average_what_the_workers_published(cluster: Any) -> None:
    """The final model is the first one plus, for each round, the mean of what each shard added."""
    cluster.join("one")
    cluster.join("two")
    experiment = cluster.submit(evaluate_every=0)
    status = cluster.end_of(experiment)
    assert status.experiment.state is ExperimentState.FINISHED, status
    first = cluster.workers[0].tasks[0]
    store = cluster.shared.store(experiment)
    folder = cluster.shared.experiment_path(experiment)
    last = decode((folder / "model.safetensors").read_bytes(), "model.safetensors").tensors
    start = decode(store.read(first.model), first.model.name).tensors
    for name, array in last.items():
        if array.dtype == np.float32:
            np.testing.assert_allclose(array, start[name] + 2 * 1.5, rtol=1e-5)


def test_the_order_of_completion_changes_no_byte(cluster: Any) -> None:
    """Four workers that finish every round in another order make the same model."""
    waiting: list[tuple[Any, TaskMessage]] = []
    shuffled = random.Random(5)

    def in_any_order(worker: Any, task: TaskMessage) -> None:
        waiting.append((worker, task))
        if len(waiting) == 4:
            together = waiting[:]
            waiting.clear()
            shuffled.shuffle(together)
            for one, its in together:
                noise = np.random.default_rng(its.id.shard)
                arrays = {
                    name: (array + noise.normal(size=array.shape)).astype(array.dtype)
                    for name, array in one.parameters(its).items()
                }
                one.report(its, one.publish(its, arrays), loss=1.0 + its.id.shard)

    for name in ("one", "two", "three", "four"):
        cluster.join(name, in_any_order)
    bytes_of = set()
    for _ in range(4):
        experiment = cluster.submit(shards=4, epochs=3, aggregate="weighted", evaluate_every=0)
        assert cluster.end_of(experiment).experiment.state is ExperimentState.FINISHED
        folder = cluster.shared.experiment_path(experiment)
        bytes_of.add((folder / "model.safetensors").read_bytes())
    assert len(bytes_of) == 1


def test_the_record_tells_the_whole_story_in_order(cluster: Any) -> None:
    """Every kind of fact is on record, submitted first, finished last."""
    cluster.join("one")
    experiment = cluster.submit()
    cluster.end_of(experiment)
    kinds = [json.loads(line)["kind"] for line in cluster.record(experiment)]
    assert kinds[0] == "submitted"
    assert kinds[-1] == "finished"
    assert kinds.count("updated") == 4
    assert kinds.count("aggregated") == kinds.count("measured") == 2
    assert kinds.index("prepared") < kinds.index("assigned") < kinds.index("updated")


def test_what_is_predicted_is_on_record_and_on_screen(cluster: Any) -> None:
    """With the assignment, after each quarter of the work, and in the status all the while."""
    pace = Forecast(q10=0.1, q50=0.2, q90=0.3, q98=0.4)
    left = Forecast(q10=30.0, q50=40.0, q90=60.0, q98=80.0)
    driver = cluster.manager._driver
    given: SimpleQueue[Any] = SimpleQueue()
    one = cluster.join("one", lambda _, task: given.put(task))
    foreseen = on.Forecasts(at_seconds=driver.now_seconds, paces=((one.name, pace),))
    driver.post(foreseen).result()
    experiment = cluster.submit(shards=1, epochs=1, evaluate_every=0)
    task = given.get(timeout=60)
    samples = len(task.indices)
    begun = cluster.client.status(experiment, 0, 0.0)
    assert begun.tasks[0].predicted == pace.times(samples)
    assert begun.tasks[0].slowness == pytest.approx(1.0)
    attempt = task.id
    half = Progress(attempt=attempt, steps_done=5, steps_total=10, elapsed_seconds=1.0)
    cluster.client.heartbeat(Heartbeat(worker=one.name, running=(half,), system=CALM))
    now = driver.now_seconds
    driver.post(on.Forecasts(at_seconds=now, remaining=((attempt, left),))).result()
    shown = cluster.client.status(experiment, 0, 0.0).tasks[0].predicted
    facts = [json.loads(line) for line in cluster.record(experiment)]
    [assigned] = [fact for fact in facts if fact["kind"] == "assigned"]
    [told] = [fact for fact in facts if fact["kind"] == "foreseen"]
    assert assigned["q50_seconds"] == pytest.approx(0.2 * samples)
    assert (told["worker"], told["done"]) == (one.name, 0.5)
    assert told["q90_seconds"] == shown.q90 == told["elapsed_seconds"] + 60.0


def test_what_an_attempt_used_is_on_record(cluster: Any) -> None:
    """As its worker's heartbeats said, when it ends; what a stranger says is not."""
    given: SimpleQueue[Any] = SimpleQueue()
    one = cluster.join("one", lambda _, task: given.put(task))
    experiment = cluster.submit(shards=1, epochs=1, evaluate_every=0)
    task = given.get(timeout=60)
    running = (Progress(attempt=task.id, steps_done=1, steps_total=2, elapsed_seconds=1.0),)
    for worker in (one.name, "stranger"):
        process = ProcessState(cpu_share=1.5, memory_bytes=10**9, threads=7)
        beat = Heartbeat(worker=worker, running=running, system=CALM, process=process)
        cluster.client.heartbeat(beat)
    one.report(task, one.publish(task, one.parameters(task)))
    cluster.end_of(experiment)
    facts = [json.loads(line) for line in cluster.record(experiment)]
    [used] = [fact for fact in facts if fact["kind"] == "resources-used"]
    assert (used["worker"], used["round"], used["shard"]) == ("one", 0, 0)
    assert [sample[1:] for sample in used["samples"]] == [[1.5, 10**9, 7, 0.0]]


def test_updates_are_gone_when_all_is_done_and_the_last_models_are_kept(cluster: Any) -> None:
    """No update outlives its experiment, and as many model versions are left as the spec keeps."""
    cluster.join("one")
    experiment = cluster.submit(epochs=4, keep_models=2, evaluate_every=0)
    cluster.end_of(experiment)
    cluster.manager.close()
    names = cluster.shared.store(experiment).list()
    assert not [name for name in names if name.startswith(("update", "optimizer"))]
    assert len([name for name in names if name.startswith("model-")]) == 2
    assert {"spec.toml", "record.jsonl", "model.safetensors"} <= set(names)


def _spoiled(how: str) -> Any:
    """Return a worker's behavior that spoils its first update in some way, and none after."""
    spoiled: list[TaskMessage] = []

    def behave(worker: Any, task: TaskMessage) -> None:
        arrays = worker.parameters(task)
        if spoiled:
            worker.report(task, worker.publish(task, arrays))
            return
        spoiled.append(task)
        if how == "nan":
            arrays = {name: np.full_like(array, np.nan) for name, array in arrays.items()}
        if how == "shape":
            arrays = {name: array.reshape(-1)[:1] for name, array in arrays.items()}
        file = worker.publish(task, arrays)
        path = worker.shared.experiment_path(task.id.experiment) / file.name
        if how == "truncated":
            path.write_bytes(path.read_bytes()[:-100])
        if how == "altered":
            content = bytearray(path.read_bytes())
            content[-1] ^= 1
            path.write_bytes(content)
        if how == "missing":
            path.unlink()
        worker.report(task, file)

    return behave


@pytest.mark.parametrize("how", ["nan", "shape", "truncated", "altered", "missing"])
def test_a_spoiled_update_costs_its_attempt_and_nothing_else(cluster: Any, how: str) -> None:
    """The update is refused, its shard is trained again, and the experiment finishes."""
    cluster.join("one")
    cluster.join("spoiler", _spoiled(how))
    experiment = cluster.submit(evaluate_every=0)
    status = cluster.end_of(experiment)
    assert status.experiment.state is ExperimentState.FINISHED, status
    facts = [json.loads(line) for line in cluster.record(experiment)]
    failed = [fact for fact in facts if fact["kind"] == "attempt-failed"]
    assert [fact["worker"] for fact in failed] == ["spoiler"]
    assert failed[0]["failure"] == "store"


def test_all_updates_must_have_the_networks_layout(cluster: Any) -> None:
    """Even if all agree on other shapes, none of them becomes a model."""

    def reshape(worker: Any, task: TaskMessage) -> None:
        arrays = {name: array.reshape(-1) for name, array in worker.parameters(task).items()}
        worker.report(task, worker.publish(task, arrays))

    cluster.join("one", reshape)
    status = cluster.end_of(cluster.submit(retries=0, evaluate_every=0))
    assert status.experiment.state is ExperimentState.FAILED
    assert "failed once" in status.experiment.reason


def test_a_task_that_fails_everywhere_fails_the_experiment_with_the_cause(cluster: Any) -> None:
    """After its retries are used up, the experiment ends and says in one line what went wrong."""

    def fail(worker: Any, task: TaskMessage) -> None:
        worker.client.report_failure(worker.name, task.id, FailureKind.TASK, "no such luck")

    cluster.join("one", fail)
    cluster.join("two", fail)
    experiment = cluster.submit(retries=1)
    status = cluster.end_of(experiment)
    assert status.experiment.state is ExperimentState.FAILED
    assert "no such luck" in status.experiment.reason
    assert not status.experiment.asked_wrongly


def test_a_cancelled_experiment_ends_and_its_workers_are_told(cluster: Any) -> None:
    """Cancelling ends the experiment at once; what runs for it is cancelled at its worker."""

    def never(worker: Any, task: TaskMessage) -> None:
        del worker, task

    worker = cluster.join("one", never)
    experiment = cluster.submit()
    cluster.status_when(lambda s: any(w.running for w in s.workers))
    cluster.client.cancel(experiment)
    assert cluster.end_of(experiment).experiment.state is ExperimentState.CANCELLED
    assert worker.cancelled.get(timeout=5) == worker.tasks[0].id


def test_a_spec_without_shards_gets_as_many_as_there_are_workers(cluster: Any) -> None:
    """The number of live workers at submission is frozen into the resolved spec."""
    for name in ("one", "two", "three"):
        cluster.join(name)
    experiment = cluster.submit(shards=None)
    cluster.end_of(experiment)
    assert json.loads(cluster.record(experiment)[0])["shards"] == 3


def test_without_workers_a_spec_must_name_its_shards(cluster: Any) -> None:
    """There is nothing to count, and the refusal says so."""
    with pytest.raises(SpecError, match="set the number of shards"):
        cluster.submit(shards=None)


@pytest.mark.parametrize(
    ("toml", "field"),
    [
        ('dataset = "nowhere"', "dataset"),
        ('dataset = "npz"\ndata_path = "/nowhere.npz"', "data_path"),
        ('model = "nonesuch"', "model"),
        ('model = "os:system"', "model"),
        ("learning_rate = -1", "learning_rate"),
        ("colour = 1", "colour"),
        ("= 3", "TOML"),
    ],
)
def test_a_spec_that_cannot_be_is_refused_at_once(cluster: Any, toml: str, field: str) -> None:
    """The client gets the field's name, and no experiment comes of it."""
    with pytest.raises(SpecError) as refused:
        cluster.client.submit(f"shards = 2\n{toml}" if field != "TOML" else toml)
    assert refused.value.field == field
    assert cluster.client.list_experiments() == ()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"batches": "balanced", "batch_size": 4}, "batches"),
        ({"shards": 5000}, "shards"),
        ({"model": "alexnet"}, "model"),
        ({"model_options": {"nonsense": 1}}, "model_options"),
    ],
)
def test_what_only_the_data_can_tell_fails_the_experiment(
    cluster: Any, changes: dict[str, Any], field: str
) -> None:
    """What does not fit the dataset fails before any task, as something the user can mend."""
    pytest.importorskip("torchvision", reason="torchvision is not installed")
    worker = cluster.join("one")
    end = cluster.end_of(cluster.submit(**changes)).experiment
    assert end.state is ExperimentState.FAILED
    assert end.asked_wrongly
    assert end.reason.startswith(field), end.reason
    assert worker.tasks == []


def test_a_worker_with_another_shared_directory_is_turned_away(cluster: Any) -> None:
    """Who cannot tell what stands in the manager's presence file sees another folder."""
    worker = cluster.join("one")
    with pytest.raises(SharedDirectoryError, match="not the folder"):
        cluster.client.register_worker(replace(worker.registration, presence="something else"))


def test_a_worker_of_another_protocol_is_turned_away(cluster: Any) -> None:
    """The refusal names both versions."""
    worker = cluster.join("one")
    with pytest.raises(IncompatiblePeer, match="install the same"):
        cluster.client.register_worker(replace(worker.registration, protocol=99, version="9.9"))


def test_a_worker_that_cannot_be_called_back_is_told_so(cluster: Any) -> None:
    """A registration whose address nobody answers at is refused in one line."""
    worker = cluster.join("one")
    with pytest.raises(Refused, match=r"cannot call back at 127\.0\.0\.1:1 "):
        cluster.client.register_worker(replace(worker.registration, port=1))


def test_a_worker_that_names_another_ones_address_is_told_so(cluster: Any) -> None:
    """As happens where many machines are seen under one address."""
    one, two = cluster.join("one"), cluster.join("two")
    with pytest.raises(
        Refused, match=rf"^advertise: two answers at 127.0.0.1:{two.server.address.port}"
    ):
        cluster.client.register_worker(replace(one.registration, port=two.server.address.port))


def test_reports_about_nothing_harm_nobody(cluster: Any) -> None:
    """Updates of unknown experiments, rounds and shards are taken without effect."""
    cluster.join("one")
    experiment = cluster.submit()
    for attempt in (
        AttemptId(experiment="unknown", round=0, shard=0, attempt=0),
        AttemptId(experiment=experiment, round=99, shard=0, attempt=0),
        AttemptId(experiment=experiment, round=0, shard=99, attempt=0),
    ):
        name = layout.attempt_name("update", attempt, "x")
        file = PublishedFile(name=name, size_bytes=1, checksum="0" * 32)
        cluster.client.report_update("stranger", attempt, _update(file))
    assert cluster.end_of(experiment).experiment.state is ExperimentState.FINISHED


def test_a_request_is_of_one_spec(cluster: Any) -> None:
    """Repeated it is answered with the same experiment, and refused with another spec."""
    cluster.join("one")
    experiment = cluster.client.submit(SMALL.to_toml(), "ab12")
    assert cluster.client.submit(SMALL.to_toml(), "ab12") == experiment
    with pytest.raises(SpecError, match=r"request = 'ab12'.* spec differs"):
        cluster.client.submit(SMALL.replace(seed=9).to_toml(), "ab12")
    assert cluster.end_of(experiment).experiment.state is ExperimentState.FINISHED
    assert cluster.client.submit(SMALL.to_toml(), "ab12") == experiment


@pytest.mark.parametrize("name", ["", "a\nb", "\x1b[31mred", "w" * 65])
def test_a_name_that_cannot_be_shown_is_refused(cluster: Any, name: str) -> None:
    """No escape sequence and no line break comes to a table by a worker's name."""
    worker = cluster.join("one")
    with pytest.raises(SpecError, match=r"name = .*1 to 64 printable characters"):
        cluster.client.register_worker(replace(worker.registration, name=name))


@pytest.mark.parametrize("name", ["../spec.toml", "a/b", "..", ""])
def test_a_file_name_that_is_not_bare_is_refused(cluster: Any, name: str) -> None:
    """Nothing outside an experiment's folder can be named in a message."""
    attempt = AttemptId(experiment="any", round=0, shard=0, attempt=0)
    file = PublishedFile(name=name, size_bytes=1, checksum="0" * 32)
    with pytest.raises((IncompatiblePeer, Refused, SpecError, ValueError)):
        cluster.client.report_update("one", attempt, _update(file))


def test_who_asks_for_an_unknown_experiment_is_told_where_to_look(cluster: Any) -> None:
    """All calls about an experiment refuse it alike."""
    client = cluster.client
    for call, arguments in (
        (client.status, ("nonesuch", 0, 0.0)),
        (client.results, ("nonesuch", 0, 0.0)),
        (client.cancel, ("nonesuch",)),
        (client.disturbed, ("nonesuch", "one", "is killed")),
    ):
        with pytest.raises(Refused, match="no experiment 'nonesuch'"):
            call(*arguments)


def test_who_reads_that_an_experiment_has_ended_has_all_of_its_lines(cluster: Any) -> None:
    """A page never tells of an end whose last line it does not lead to."""
    experiment = cluster.submit()
    space = cluster.manager._spaces[experiment]
    record = space.record

    class EndsWhileRead:
        """A record whose experiment ends between a look at it and the next question."""

        def lines(self, from_line: int) -> list[str]:
            """Look, and then let the experiment end."""
            seen = record.lines(from_line)
            cluster.client.cancel(experiment)
            return list(seen)

        def __len__(self) -> int:
            """As long as a record is."""
            return len(record)

        def __getattr__(self, name: str) -> Any:
            """Do everything else as a record does."""
            return getattr(record, name)

    there = len(cluster.record(experiment))
    space.record = EndsWhileRead()
    page = cluster.client.results(experiment, there, 0.0)
    space.record = record
    assert page.lines or not page.experiment.state.ended


def test_a_manager_leaves_no_presence_behind(cluster: Any, tmp_path: Any) -> None:
    """Its file is there while it serves; neither its end nor a failed start leaves one."""
    presence = cluster.shared.presence
    assert len(list(presence.iterdir())) == 2, "a file, and the lock that shows that it lives"
    port = cluster.manager.address.port
    with pytest.raises(SpecError, match="in use"):
        start_manager(ManagerOptions(shared=str(tmp_path), port=port, embedded=True))
    assert len(list(presence.iterdir())) == 2
    cluster.manager.close()
    assert list(presence.iterdir()) == []


def _update(file: PublishedFile) -> Update:
    return Update(
        file=file,
        samples=1,
        steps=1,
        loss=0.5,
        load_seconds=0.0,
        train_seconds=0.0,
        publish_seconds=0.0,
    )


def _calm() -> SystemState:
    return SystemState(cpu_others=0.0, load_average=0.0, memory_used=0.0, io_wait=0.0)
