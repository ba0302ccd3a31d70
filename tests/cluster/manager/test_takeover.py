"""A manager that takes up what another one has left: nothing is lost, and nothing counts twice."""

import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from downpour.base.errors import Refused, SharedDirectoryError, SpecError
from downpour.base.states import ExperimentState
from downpour.base.values import AttemptId
from downpour.cluster.manager import command_runner
from downpour.cluster.manager.work import sweep
from downpour.cluster.manager.workspace import _kept_spec
from downpour.core.node.journal import Line
from downpour.files.store import layout
from downpour.files.store.directory import DirectoryStore
from downpour.files.store.layout import SPEC_NAME, MemoryStore
from downpour.files.store.lease import Lease, highest_term, term_name
from downpour.network.rpc.messages import BlockDigest, TaskMessage
from downpour.record import Result
from downpour.record.journal import read_journal, segments
from downpour.record.record import parse_lines
from downpour.record.tables import Tables
from downpour.record.timeline import attempt_spans
from tests.cluster.manager.conftest import SMALL, Cluster, FakeWorker, Start, diligent
from tests.specs import plain_spec
from tests.waiting import until

PATIENCE_SECONDS = 30.0
TASKS = SMALL.shards * SMALL.epochs


def diligent_until(tasks: int, then: Event) -> Callable[[FakeWorker, TaskMessage], None]:
    """Do so many tasks, then none, and tell."""
    done = Counter[str]()

    def behave(worker: FakeWorker, task: TaskMessage) -> None:
        if done["tasks"] < tasks:
            done["tasks"] += 1
            diligent(worker, task)
        if done["tasks"] == tasks:
            then.set()

    return behave


@pytest.mark.parametrize("tasks", range(TASKS + 1))
def test_another_manager_finishes_an_experiment(
    start: Start, undisturbed: bytes, tasks: int
) -> None:
    """Wherever the first one ended, the model is the same, and the record tells each thing once."""
    enough = Event()
    first = start()
    first.join("one", diligent_until(tasks, enough))
    experiment = first.submit()
    assert tasks == 0 or enough.wait(PATIENCE_SECONDS)
    first.close()

    second = start()
    second.join("one")
    assert second.result_of(experiment) == undisturbed
    told = [json.loads(line) for line in second.record(experiment)]
    once = [
        (fact["kind"], fact.get("round"), fact.get("shard"))
        for fact in told
        if fact["kind"] in {"submitted", "updated", "aggregated", "measured", "finished"}
    ]
    assert Counter(once).most_common(1)[0][1] == 1
    assert len([kind for kind, *_ in once if kind == "updated"]) == TASKS
    second.close()
    left = [path.name for path in second.shared.experiment_path(experiment).iterdir()]
    assert not [name for name in left if name.startswith(("update", ".tmp"))]


def test_meetings_that_follow_from_the_shards_stay(start: Start) -> None:
    """The spec's file names them before a worker reads it, whichever manager prepares."""
    calm = start()
    calm.join("one")
    expected = calm.result_of(calm.submit(meet=4))
    calm.close()
    for tasks in (0, 1, 5):
        first, enough = start(), Event()
        first.join("one", diligent_until(tasks, enough))
        experiment = first.submit(meet="auto")
        assert tasks == 0 or enough.wait(PATIENCE_SECONDS)
        first.close()
        second = start()
        second.join("one")
        assert second.result_of(experiment) == expected
        spec = second.shared.experiment_path(experiment) / "spec.toml"
        assert "\nmeet = 4\n" in spec.read_text()
        ended = Result.from_lines(second.record(experiment))
        assert (ended.spec["meet"], len(ended.rounds), len(ended.epochs)) == (4, 8, 2)
        second.close()


OUTER: dict[str, Any] = {
    "model_compression": "int3",
    "outer": {"optimizer": "nesterov", "momentum": 0.6},
}


def interrupted(start: Start, rounds: int, **fields: Any) -> tuple[Cluster, str]:
    """Close a manager after some rounds of an experiment; return another one."""
    cluster, enough = start(), Event()
    cluster.join("one", diligent_until(SMALL.shards * rounds + 1, enough))
    experiment = cluster.submit(epochs=5, **OUTER, **fields)
    assert enough.wait(PATIENCE_SECONDS)
    cluster.close()
    return start(), experiment


def finished(cluster: Cluster, experiment: str) -> tuple[bytes, list[bytes]]:
    """Return an experiment's model, and the states of the outer optimizer that it left."""
    model, folder = cluster.result_of(experiment), cluster.shared.experiment_path(experiment)
    # The manager publishes the last state, and removes the first one, after it has told the result.
    until(lambda: not any(folder.glob("outer-000000-*")))
    cluster.close()
    return model, outer_states(cluster, experiment)


def outer_states(cluster: Cluster, experiment: str) -> list[bytes]:
    """Return the states of the outer optimizer in an experiment's folder."""
    paths = cluster.shared.experiment_path(experiment).glob("outer-*")
    return [path.read_bytes() for path in paths]


@pytest.mark.parametrize(("aggregate", "after"), [("average", (0, 2, 4)), ("median", (1, 3))])
def test_another_manager_computes_the_outer_state_from_updates(
    start: Start, aggregate: str, after: tuple[int, ...]
) -> None:
    """Not each version has a file of it; what the first manager held follows from the rest."""
    calm = start()
    calm.join("one")
    expected = finished(calm, calm.submit(epochs=5, aggregate=aggregate, **OUTER))
    for rounds in after:
        other, experiment = interrupted(start, rounds, aggregate=aggregate)
        other.join("one")
        assert finished(other, experiment) == expected
        left = [path.name for path in other.shared.experiment_path(experiment).iterdir()]
        assert not [name for name in left if name.startswith("update")]


def test_an_experiment_that_ends_without_another_round_leaves_its_outer_state(start: Start) -> None:
    """For one that continues it: as an experiment that has had three rounds in all."""
    calm = start()
    calm.join("one")
    _, expected = finished(calm, calm.submit(epochs=3, **OUTER))
    other, experiment = interrupted(start, 3)
    assert outer_states(other, experiment) != expected
    other.client.cancel(experiment)
    other.close()
    start().close()
    assert outer_states(other, experiment) == expected


def test_blocks_that_were_read_before_are_compared(start: Start) -> None:
    """However the workers come back, it is the same one whose data are different."""
    good, bad = (BlockDigest("a", digit * 32) for digit in "01")
    first = start()
    first.join("one", diligent_until(0, Event()))
    experiment = first.submit()
    assert first.client.report_blocks("one", experiment, (good,)) == ()
    first.close()
    second = start()
    assert second.client.report_blocks("two", experiment, (bad,)) == ("a, which one read first",)
    assert second.client.report_blocks("one", experiment, (good,)) == ()
    assert sum('"blocks-read"' in line for line in second.record(experiment)) == 1


def before_the_first_model(journal: bytes) -> bytes:
    """Cut a journal before its first version, so the next manager asks for its updates again."""
    return journal[: journal.rindex(b"\n", 0, journal.index(b'"aggregated"')) + 1]


def without_bytes(journal: bytes, count: int) -> bytes:
    """Cut that number of bytes off."""
    return journal[:-count]


def without_lines(journal: bytes, count: int) -> bytes:
    """Cut that number of lines off."""
    return b"".join(journal.splitlines(keepends=True)[:-count])


CUTS: dict[str, Callable[[bytes], bytes]] = {
    **{f"{n} bytes": partial(without_bytes, count=n) for n in (1, 900, 2000)},
    **{f"{n} lines": partial(without_lines, count=n) for n in (1, 3)},
    "a model": before_the_first_model,
}


@pytest.mark.slow
@pytest.mark.parametrize("cut", CUTS)
def test_each_task_counts_once_though_a_journal_lost_its_end(
    start: Start, undisturbed: bytes, cut: str
) -> None:
    """The model is the same; results mark what was retrained, and the record that it was lost."""
    enough, began = Event(), time.monotonic()
    first = start()
    first.join("one", diligent_until(TASKS - 1, enough))
    experiment = first.submit()
    assert enough.wait(PATIENCE_SECONDS)
    first.close()
    [segment] = segments(first.shared.experiment_path(experiment))
    segment.write_bytes(CUTS[cut](segment.read_bytes()))

    second = start()
    second.join("one")
    assert second.result_of(experiment) == undisturbed
    record = parse_lines(second.record(experiment))
    second.close()
    result = Result.from_record(record)
    assert [(task.epoch, task.shard) for task in result.tasks] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    again = {(task.epoch, task.shard) for task in result.tasks if task.retrained}
    assert again == {(one.epoch, one.shard) for one in result.failures if one.update_lost}
    assert again == {(1, 0), (1, 1)} or cut != "a model"
    spans = list(attempt_spans(Tables.of(record)))
    trained = [span for span in spans if span.outcome == "trained"]
    assert len(trained) == TASKS, "the timeline shows each task's update once"
    passed = time.monotonic() - began
    assert all(0 <= span.end_seconds - span.begin_seconds <= passed for span in spans)
    for epoch in result.epochs:
        took = {
            counts: sum(
                span.end_seconds - span.begin_seconds
                for span in spans
                if span.round == epoch.epoch and (span.outcome == "trained") is counts
            )
            for counts in (True, False)
        }
        assert epoch.stragglers is not None
        assert epoch.stragglers.extra_work == pytest.approx(took[False] / took[True], abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "harm", "most"),
    [
        ("sync", bytes, 50),
        ("downpour", bytes, 50),
        ("downpour", lambda content: content.replace(b'"checkpoint"', b'"x"'), 100),
    ],
)
def test_a_long_story_is_replayed_from_its_last_checkpoint(
    start: Start, mode: str, harm: Callable[[bytes], bytes], most: int
) -> None:
    """The next manager reads little, also if the last one is damaged; the record has all of it."""
    enough = Event()
    first = start()
    first.join("one", diligent_until(120, enough))
    experiment = first.submit(mode=mode, shards=1, epochs=130, evaluate_every=0)
    assert enough.wait(PATIENCE_SECONDS)
    first.close()
    folder = first.shared.experiment_path(experiment)
    for segment in segments(folder)[-1:]:
        segment.write_bytes(harm(segment.read_bytes()))
    assert len(read_journal(folder)) < 3 * most
    second = start()
    second.join("one")
    second.result_of(experiment)
    updated = [line for line in second.record(experiment) if '"updated"' in line]
    assert len(updated) == 130


def test_ended_experiments_stay_listed(start: Start) -> None:
    """Its state and its record can be asked for; it is not begun again, and is tidied."""
    first = start()
    first.join("one")
    finished = first.submit(name="done")
    first.result_of(finished)
    cancelled = first.submit(name="not-wanted", epochs=1000)
    first.client.cancel(cancelled)
    lines = first.record(finished)
    first.close()
    stores = [first.shared.store(name) for name in (finished, cancelled)]
    (first.shared.root / "ended-000001.jsonl").unlink()
    for store in stores:  # as a manager leaves them that died when it had journaled the end
        attempt = AttemptId(experiment="any", round=0, shard=0, attempt=0)
        store.put_new(layout.attempt_name("update", attempt, "aa"), [b"left over"])

    second = start()
    assert [layout.is_in_flight(name) for store in stores for name in store.list()].count(True) == 0
    assert layout.FINAL_NAME in stores[0].list()
    states = {one.experiment: one.state for one in second.client.list_experiments()}
    assert states == {finished: ExperimentState.FINISHED, cancelled: ExperimentState.CANCELLED}
    assert second.record(finished) == lines


def test_a_version_that_no_journal_names_goes_with_the_end() -> None:
    """A manager that was cut off published it after its successor had looked for such files."""
    store = MemoryStore()
    known = store.put_new("model-000007-aa.safetensors", [b"x"])
    store.put_new("model-000007-bb.safetensors", [b"y"])
    sweep(store, finished=True, versions=(known,))
    assert store.list() == [known.name]


def test_a_request_counts_once_also_for_the_next_manager(start: Start) -> None:
    """A client that has not heard the answer asks again, and gets the same experiment."""
    first = start()
    spec = SMALL.to_toml()
    asked = [first.client.submit(spec, request) for request in ("0123abcd", "0123abcd", "4567")]
    assert asked[0] == asked[1] != asked[2]
    with pytest.raises(SpecError, match=r"request = '4567'.* spec differs"):
        first.client.submit(SMALL.replace(seed=9).to_toml(), "4567")
    first.close()
    second = start()
    assert second.client.submit(spec, "0123abcd") == asked[0]
    with pytest.raises(SpecError, match="request = 'mine': 4 to 32 hexadecimal digits in lower"):
        second.client.submit(spec, "mine")
    second.join("one")
    second.result_of(asked[0])
    assert second.client.submit(spec, "0123abcd") == asked[0]


def test_experiments_go_on_in_the_order_of_submission(start: Start) -> None:
    """The running one first, then those that waited; the list keeps those that ended in between."""
    first = start()
    names = [first.submit(name=name, epochs=1) for name in ("c", "b", "a")]
    first.client.cancel(names[1])
    first.close()
    second = start()
    names.append(second.submit(name="d", epochs=1))
    assert [one.experiment for one in second.client.list_experiments()] == names
    second.join("one")
    for number, name in enumerate(names):
        second.end_of(name)
        states = [one.state for one in second.client.list_experiments()]
        assert all(state.ended for state in states[: number + 1])
    assert states.count(ExperimentState.FINISHED) == 3


def test_a_second_manager_is_refused_while_the_first_serves(start: Start) -> None:
    """The line says who serves; when he is gone, there is room."""
    first = start()
    with pytest.raises(
        SharedDirectoryError, match="another manager serves this directory"
    ) as refusal:
        start()
    assert str(first.manager.address) in str(refusal.value)
    first.close()
    start().close()


def test_a_manager_that_was_replaced_decides_no_more(start: Start) -> None:
    """Even where its lock was lost without its knowing: a later term is enough."""
    first = start()
    Lease(first.shared).claim("elsewhere:1")
    with pytest.raises(Refused, match="is stopping"):
        first.submit()


def test_a_manager_that_was_replaced_while_it_read_removes_nothing(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stood still meanwhile: what its journals don't name may be the next leader's."""
    enough = Event()
    first = start()
    first.join("one", diligent_until(TASKS - 1, enough))
    experiment = first.submit()
    assert enough.wait(PATIENCE_SECONDS)
    first.close()
    newer = first.shared.experiment_path(experiment) / "own-000001-000000-abcdef.safetensors"
    newer.write_bytes(b"the next leader's")

    def read_slowly(folder: Path) -> list[Line]:
        journal = read_journal(folder)
        Lease(first.shared).claim("elsewhere:1")
        return journal

    monkeypatch.setattr("downpour.record.journal.read_journal", read_slowly)
    with pytest.raises(SharedDirectoryError, match="another manager has taken over"):
        start()
    assert newer.exists()


def test_a_manager_that_cannot_see_the_terms_acknowledges_nothing(start: Start) -> None:
    """What it journals may be void: another one may lead, whose term it cannot see."""
    first = start()
    terms = first.shared.terms
    hidden = terms.rename(terms.with_name("hidden"))
    terms.write_text("not a folder")
    (hidden / term_name(highest_term(hidden) + 1)).write_text("{}")
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(first.submit)
        answered, _ = wait([asked], timeout=0.5)
        assert not answered
        terms.unlink()
        hidden.rename(terms)
        with pytest.raises(Refused, match="is stopping"):
            asked.result()


NETWORK = """
from torch import nn
def build(num_classes, sample_shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(sample_shape[1] * sample_shape[2], num_classes))
"""


@pytest.mark.slow
def test_code_that_was_changed_meanwhile_is_waited_for(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What was trained is worth more than an edit: put back, the experiment goes on by itself."""
    code, first_round = tmp_path / "code", Event()
    code.mkdir()
    network = code / "changing_net.py"
    network.write_text(NETWORK)
    monkeypatch.syspath_prepend(str(code))
    monkeypatch.setenv("DOWNPOUR_ALLOW", "changing_net")
    monkeypatch.setattr(command_runner, "_HELD_SECONDS", 0.01)
    first = start()
    first.join("one", diligent_until(1, first_round))
    experiment = first.submit(model="changing_net:build")
    assert first_round.wait(PATIENCE_SECONDS)
    first.client.leave("one", "goes home")
    first.close()

    del sys.modules["changing_net"]  # as in a process that has not imported it
    network.write_text(f"{NETWORK}# changed")
    with caplog.at_level(logging.WARNING):
        second = start()
        while "is held" not in caplog.text:
            second.client.status(experiment, 0, 0.01)
    assert "changing_net.py has changed since the experiment was submitted" in caplog.text
    network.write_text(NETWORK)
    second.join("two")
    assert second.result_of(experiment)


class _Behind(DirectoryStore):
    """A store whose first listing is from before the other manager has written the spec."""

    listings = 0

    def list(self) -> list[str]:
        """Return the names."""
        self.listings += 1
        return list(super().list()) if self.listings > 1 else []


def test_a_spec_that_the_former_manager_writes_meanwhile_is_kept(tmp_path: Path) -> None:
    """A successor that finds none writes it again, unless it has appeared."""
    spec = plain_spec(shards=2)
    store = _Behind(tmp_path)
    written = store.put_new(SPEC_NAME, [spec.to_toml().encode()])
    assert _kept_spec(store, "one", spec) == written
