"""A real manager over real sockets and files; its workers are fakes that train nothing."""

import json
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

from downpour.base.errors import IncompatiblePeer, Refused, SharedDirectoryError, SpecError
from downpour.base.values import (
    AttemptId,
    Forecast,
    ProcessState,
    Progress,
    PublishedFile,
    Snapshot,
)
from downpour.cluster.manager.process import start_manager
from downpour.cluster.options import ManagerOptions
from downpour.core.scheduler import events as on
from downpour.files.store import decode, layout
from downpour.network.rpc.messages import Heartbeat, TaskMessage
from downpour.record.record import parse_lines
from downpour.record.record_lines import AssignedLine, DisturbedLine
from tests.cluster.manager.conftest import CALM, diligent
from tests.specs import plain_update

PATIENCE_SECONDS = 30.0


def test_two_rounds_average_the_workers_updates(cluster: Any) -> None:
    """The final model is the first one plus, for each round, the mean of what each shard added."""
    cluster.join("one")
    cluster.join("two")
    experiment = cluster.submit(evaluate_every=0)
    last = decode(cluster.result_of(experiment), "model.safetensors").tensors
    first = cluster.workers[0].tasks[0]
    store = cluster.shared.store(experiment)
    start = decode(store.read(first.model), first.model.name).tensors
    for name, array in last.items():
        if array.dtype == np.float32:
            np.testing.assert_allclose(array, start[name] + 2 * 1.5, rtol=1e-5)


def test_forecasts_are_on_record_and_on_screen(cluster: Any) -> None:
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
    [assigned] = cluster.facts(experiment, "assigned")
    [told] = cluster.facts(experiment, "foreseen")
    assert assigned["q50_seconds"] == pytest.approx(0.2 * samples)
    assert (told["worker"], told["done"]) == (one.name, 0.5)
    assert told["q90_seconds"] == shown.q90 == told["elapsed_seconds"] + 60.0


def test_a_record_tells_when_its_turn_in_the_queue_comes(cluster: Any) -> None:
    """The second experiment waits, as long as the first has the only worker."""
    given: SimpleQueue[Any] = SimpleQueue()
    cluster.join("one", lambda _, task: given.put(task))
    both = [cluster.submit(shards=1, epochs=1, evaluate_every=0) for _ in range(2)]
    given.get(timeout=60)
    assert [len(cluster.facts(each, "begun")) for each in both] == [1, 0]


def test_the_resources_of_an_attempt_are_on_record(cluster: Any) -> None:
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
    [used] = cluster.facts(experiment, "resources-used")
    assert (used["worker"], used["round"], used["shard"]) == ("one", 0, 0)
    assert [sample[1:] for sample in used["samples"]] == [[1.5, 10**9, 7, 0.0]]


@pytest.mark.slow
def test_a_spoiled_update_costs_its_attempt_and_nothing_else(cluster: Any) -> None:
    """The update is refused and removed, its shard is trained again, the experiment finishes."""
    spoiled: list[Path] = []

    def behave(worker: Any, task: TaskMessage) -> None:
        file = worker.publish(task, worker.parameters(task))
        if not spoiled:
            spoiled.append(worker.shared.experiment_path(task.id.experiment) / file.name)
            content = spoiled[0].read_bytes()
            spoiled[0].write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        worker.report(task, file)

    cluster.join("one")
    cluster.join("spoiler", behave)
    experiment = cluster.submit(evaluate_every=0)
    cluster.result_of(experiment)
    [failed] = cluster.facts(experiment, "attempt-failed")
    assert (failed["worker"], failed["failure"]) == ("spoiler", "store")
    assert "checksum" in failed["reason"]
    assert not spoiled[0].exists()


def test_a_spec_without_shards_gets_as_many_as_there_are_workers(cluster: Any) -> None:
    """The number of live workers at submission is frozen into the resolved spec."""
    for name in ("one", "two", "three"):
        cluster.join(name)
    experiment = cluster.submit(shards=None)
    cluster.end_of(experiment)
    assert json.loads(cluster.record(experiment)[0])["shards"] == 3


def test_a_spec_that_cannot_be_is_refused_at_once(cluster: Any) -> None:
    """The client gets the field's name, and no experiment comes of it."""
    for toml, field in (
        ('shards = 2\ndataset = "nowhere"', "dataset"),
        ('shards = 2\ndataset = "npz"\ndata_path = "/nowhere.npz"', "data_path"),
        ('shards = 2\nmodel = "os:system"', "model"),
        ('shards = 2\nkeep_best = "bleu"', "keep_best"),  # what the built-in task does not measure
        ("shards = 2\ncolour = 1", "colour"),
        ("= 3", "TOML"),
    ):
        with pytest.raises(SpecError) as refused:
            cluster.client.submit(toml)
        assert refused.value.field == field
    assert cluster.client.list_experiments() == ()


def test_a_spec_that_does_not_fit_the_dataset_fails_the_experiment(cluster: Any) -> None:
    """Before any task, and as something the user can mend."""
    worker = cluster.join("one")
    for field, value in (("shards", 5000), ("model_options", {"nonsense": 1})):
        reason = cluster.refusal_of(cluster.submit(**{field: value}))
        assert reason.startswith(field), reason
    assert worker.tasks == []


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
        cluster.client.report_update("stranger", attempt, plain_update(file))
    cluster.result_of(experiment)


def test_a_worker_that_does_not_fit_is_turned_away(cluster: Any) -> None:
    """One line tells it why: another folder, another version, no way back, no printable name."""
    worker = cluster.join("one")
    refusals: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"presence": "something else"}, SharedDirectoryError, "not the folder"),
        ({"protocol": 99, "version": "9.9"}, IncompatiblePeer, "install the same"),
        ({"port": 1}, Refused, r"cannot call back at 127\.0\.0\.1:1 "),
        # No escape sequence and no line break comes to a table by a worker's name.
        *(
            ({"name": name}, SpecError, r"name = .*1 to 64 printable characters")
            for name in ("", "a\nb", "\x1b[31mred", "w" * 65)
        ),
    ]
    for changes, error, line in refusals:
        with pytest.raises(error, match=line):
            cluster.client.register_worker(replace(worker.registration, **changes))


def test_a_worker_at_the_address_of_another_is_turned_away(cluster: Any) -> None:
    """As happens where many machines are seen under one address."""
    one, two = cluster.join("one"), cluster.join("two")
    with pytest.raises(
        Refused, match=rf"^advertise: two answers at 127.0.0.1:{two.server.address.port}"
    ):
        cluster.client.register_worker(replace(one.registration, port=two.server.address.port))


def test_a_worker_registers_under_a_name_of_its_own(cluster: Any) -> None:
    """It hears the name, and the scheduler knows both workers by theirs."""
    first, second = cluster.join("twin"), cluster.join("twin")
    assert (first.name, second.name) == ("twin", "twin-2")
    assert [one.worker for one in cluster.client.status().workers] == ["twin", "twin-2"]


def test_a_worker_that_registers_anew_goes_on_with_its_attempt(cluster: Any) -> None:
    """It names the attempt, which is not given up, and is not asked for it again."""
    given: SimpleQueue[TaskMessage] = SimpleQueue()
    worker = cluster.join("one", lambda _, task: given.put(task))
    experiment = cluster.submit(shards=1, epochs=1, retries=0)
    task = given.get(timeout=PATIENCE_SECONDS)
    cluster.client.register_worker(replace(worker.registration, running=task.id))
    diligent(worker, task)
    cluster.result_of(experiment)
    assert [one.id for one in worker.tasks] == [task.id]


def test_the_next_worker_continues_from_the_snapshot_of_a_heartbeat(cluster: Any) -> None:
    """The worker that saved it leaves; the task of the next one names the same file."""
    given: SimpleQueue[TaskMessage] = SimpleQueue()
    worker = cluster.join("one", lambda _, task: given.put(task))
    experiment = cluster.submit(shards=1, epochs=1)
    task = given.get(timeout=PATIENCE_SECONDS)
    name = layout.attempt_name("snapshot", task.id, "ab")
    file = cluster.shared.store(experiment).put_new(name, [b"a state"])
    saved = Snapshot(file=file, steps_done=1, steps_total=2)
    progress = Progress(
        attempt=task.id, steps_done=1, steps_total=2, elapsed_seconds=1.0, snapshot=saved
    )
    cluster.client.heartbeat(Heartbeat(worker=worker.name, running=(progress,), system=CALM))
    cluster.client.leave(worker.name, "goes home")
    other = cluster.join("two")
    cluster.result_of(experiment)
    assert [one.snapshot for one in other.tasks] == [saved]


def test_a_worker_that_cannot_be_called_is_told_to_register(cluster: Any) -> None:
    """A stranger, and a worker that the scheduler knows and whose client is gone."""
    worker = cluster.join("one")
    beat = Heartbeat(worker=worker.name, running=(), system=CALM)
    assert cluster.client.heartbeat(beat).known
    assert not cluster.client.heartbeat(replace(beat, worker="stranger")).known
    cluster.manager._roster.strike(worker.name)
    assert not cluster.client.heartbeat(beat).known


def test_a_disturbance_on_purpose_is_on_record(cluster: Any) -> None:
    """Before what follows from it; those who watch are told as well."""
    experiment = cluster.submit(epochs=1)
    cluster.client.disturbed(experiment, "one", "is killed")
    told = cluster.client.status(experiment).decisions
    assert [said.partition(", ")[2] for said in told] == ["on purpose: one is killed"]
    cluster.join("one")
    cluster.end_of(experiment)
    lines = [line for _, line in parse_lines(cluster.record(experiment))]
    first = next(line for line in lines if isinstance(line, AssignedLine))
    disturbed = DisturbedLine(who="one", what="is killed")
    assert lines.index(disturbed) < lines.index(first)


def test_calls_about_an_unknown_experiment_are_refused(cluster: Any) -> None:
    """All calls about an experiment refuse it alike, and name it to programs."""
    client = cluster.client
    for call, arguments in (
        (client.status, ("nonesuch", 0, 0.0)),
        (client.results, ("nonesuch", 0, 0.0)),
        (client.cancel, ("nonesuch",)),
        (client.disturbed, ("nonesuch", "one", "is killed")),
    ):
        with pytest.raises(Refused, match="no experiment 'nonesuch'") as refused:
            call(*arguments)
        assert (refused.value.field, refused.value.value) == ("experiment", "nonesuch")


def test_a_page_that_tells_of_the_end_has_the_last_line(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page never tells of an end whose last line it does not lead to."""
    experiment = cluster.submit()
    record = cluster.manager._spaces[experiment].record
    lines = record.lines

    def look_and_end(from_line: int) -> list[str]:
        seen = list(lines(from_line))
        cluster.client.cancel(experiment)
        return seen

    there = len(cluster.record(experiment))
    with monkeypatch.context() as patch:
        patch.setattr(record, "lines", look_and_end)
        page = cluster.client.results(experiment, there, 0.0)
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
