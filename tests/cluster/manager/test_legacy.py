"""What a manager takes up: what a manager of its directory wrote, each experiment by itself."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest

from downpour.base.states import ExperimentState
from downpour.cluster.manager import takeover
from downpour.cluster.manager.metrics import ManagerMetrics
from downpour.cluster.manager.observations import Counters
from downpour.cluster.manager.process import start_manager
from downpour.files.store import SPEC_NAME, SharedDirectory, layout
from downpour.files.store.presence import RUN_LOCK_NAME, is_abandoned, lock_file
from downpour.network.rpc import ManagerClient
from downpour.network.rpc.messages import ExperimentSummary, TaskMessage
from downpour.record.journal import seal, segments, whole_lines
from tests.cluster.manager.conftest import SMALL, Cluster, diligent, options_of

if TYPE_CHECKING:
    from tests.cluster.manager.conftest import FakeWorker

PATIENCE_SECONDS = 30.0

Start = Callable[..., Cluster]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Start managers, in the same folder if nothing else is said."""

    def begin(folder: Path = tmp_path / "shared", *, embedded: bool = False) -> Cluster:
        manager = start_manager(replace(options_of(folder), embedded=embedded))
        shared = SharedDirectory.open(folder, create=False)
        return Cluster(manager, ManagerClient(manager.address), shared)

    return begin


def end(cluster: Cluster) -> None:
    """End a manager and those who work for it."""
    cluster.manager.close()
    for worker in cluster.workers:
        worker.close()
    cluster.client.close()


def finished(cluster: Cluster, experiment: str) -> bytes:
    """Wait until an experiment has finished; returns its model."""
    state = cluster.end_of(experiment).experiment
    assert state is not None
    assert state.state is ExperimentState.FINISHED, state.reason
    return (cluster.shared.experiment_path(experiment) / layout.FINAL_NAME).read_bytes()


def run_once(cluster: Cluster, **changes: Any) -> str:
    """Have a worker train the small spec; returns the experiment."""
    experiment = cluster.submit(**changes)
    if not cluster.workers:  # fakes send no heartbeats, and the first preparation imports torch
        cluster.status_when(lambda s: bool(s.tasks) or not s.experiment, experiment)
        cluster.join("one")
    finished(cluster, experiment)
    return experiment


def listed(cluster: Cluster) -> dict[str, ExperimentSummary]:
    """Return what is listed."""
    return {one.experiment: one for one in cluster.client.list_experiments()}


def contents(folder: Path) -> dict[str, bytes]:
    """Return what lies in a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def cut(folder: Path, lines: int) -> None:
    """Lose the last lines of a journal."""
    segment = segments(folder)[-1]
    segment.write_bytes(b"".join(segment.read_bytes().splitlines(keepends=True)[:-lines]))


def forget(cluster: Cluster) -> None:
    """Have the next manager read every journal."""
    for path in cluster.shared.root.glob("ended-*"):
        path.unlink()


def test_what_runs_of_their_own_have_left_is_nobodys(start: Start) -> None:
    """Two of them, one after the other; a manager starts beside that, and starts again."""
    for _ in range(2):
        run = start(embedded=True)
        run_once(run)
        end(run)
    runs = {path.name: contents(path) for path in run.shared.experiments.iterdir()}
    assert not any(name.startswith("journal") for files in runs.values() for name in files)
    for _ in range(2):
        manager = start()
        assert listed(manager) == {}
        end(manager)
    assert {path.name: contents(path) for path in run.shared.experiments.iterdir()} == runs


def test_a_healthy_cluster_survives_runs_in_its_directory(start: Start) -> None:
    """It ends while a run is at it; the next manager goes on, and so does the run."""
    begun, go_on = Event(), Event()

    def patient(worker: FakeWorker, task: TaskMessage) -> None:
        begun.set()
        assert go_on.wait(PATIENCE_SECONDS)
        diligent(worker, task)

    first = start()
    mine = first.submit()
    run = start(embedded=True)
    run.join("busy", patient)
    its = run.submit(epochs=3)
    assert begun.wait(PATIENCE_SECONDS)
    end(first)
    before = contents(run.shared.experiment_path(its))
    second = start()
    assert set(listed(second)) == {mine}
    second.join("one")
    finished(second, mine)
    assert contents(run.shared.experiment_path(its)) == before
    go_on.set()
    finished(run, its)
    end(run)
    end(second)


def test_a_run_holds_its_folder_while_it_lives(start: Start) -> None:
    """So that others can tell one that is abandoned."""
    run = start(embedded=True)
    experiment = run.submit()
    lock = run.shared.experiment_path(experiment) / RUN_LOCK_NAME
    assert lock.exists()
    assert not is_abandoned(lock)
    end(run)
    assert is_abandoned(lock)


def test_copies_and_what_comes_from_elsewhere_are_passed_by(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A line names each; nothing in them changes, and the others go on."""
    elsewhere = start(tmp_path / "elsewhere")
    foreign = elsewhere.submit(name="foreign", epochs=9)
    end(elsewhere)
    first = start()
    first.join("one")
    done, going = run_once(first, name="done"), first.submit(name="going")
    end(first)
    root = first.shared.experiments
    shutil.copytree(elsewhere.shared.experiment_path(foreign), root / foreign)
    for name in (done, going):
        shutil.copytree(root / name, root / f"{name}-backup")
    strangers = [foreign, f"{done}-backup", f"{going}-backup"]
    before = {name: contents(root / name) for name in strangers}

    second = start()
    assert set(listed(second)) == {done, going}
    assert f"does not continue experiments/{foreign}: it is another cluster's" in caplog.text
    for name in (done, going):
        assert f"does not continue experiments/{name}-backup: it is a copy of {name}" in caplog.text
    second.join("two")
    finished(second, going)
    assert {name: contents(root / name) for name in strangers} == before
    end(second)


def test_a_directory_that_is_restored_as_a_whole_is_the_same_cluster(
    start: Start, tmp_path: Path
) -> None:
    """Its terms tell so."""
    first = start()
    experiment = first.submit()
    end(first)
    # Without the cache of datasets, in which a thread may still prepare the experiment's.
    cache = shutil.ignore_patterns("datasets")
    shutil.copytree(tmp_path / "shared", tmp_path / "restored", ignore=cache)
    second = start(tmp_path / "restored")
    second.join("one")
    finished(second, experiment)
    end(second)


@pytest.mark.parametrize("known", [True, False])
def test_what_has_ended_needs_no_spec(start: Start, *, known: bool) -> None:
    """Whether a manager has noted the end or must read the journal."""
    first = start()
    done = run_once(first)
    end(first)
    (first.shared.experiment_path(done) / SPEC_NAME).unlink()
    if not known:
        forget(first)
    second = start()
    assert listed(second)[done].state is ExperimentState.FINISHED
    assert second.record(done)
    end(second)


@pytest.mark.parametrize("lines", range(1, 12))
def test_a_finished_experiment_whose_last_lines_are_lost_keeps_its_result(
    start: Start, lines: int
) -> None:
    """It ends anew, the same, or is left out; whatever it is, the manager starts and goes on."""
    first = start()
    done, next_one = run_once(first), first.submit(name="next", epochs=1)
    finished(first, next_one)
    folder = first.shared.experiment_path(done)
    result = (folder / layout.FINAL_NAME).read_bytes()
    end(first)
    cut(folder, lines)
    forget(first)

    second = start()
    second.join("one")
    other = second.submit(name="other", epochs=1)
    finished(second, other)
    one = listed(second)[done]
    if one.state is not ExperimentState.FINISHED:
        assert one.reason is not None
        assert "left out: journal: its last lines are missing" in one.reason
    assert (folder / layout.FINAL_NAME).read_bytes() == result
    end(second)


@pytest.mark.parametrize("damage", ["missing", "edited", "not text", "cut off"])
def test_workers_follow_the_spec_that_was_submitted(
    start: Start, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever became of its file while no manager was there; the journal has it."""
    first = start()
    experiment = first.submit()
    spec = first.shared.experiment_path(experiment) / SPEC_NAME
    end(first)
    submitted = spec.read_bytes()
    spec.write_bytes(
        {
            "missing": b"",
            "edited": submitted.replace(b"seed = 0", b"seed = 1"),
            "not text": b"\xff\xfe",
            "cut off": submitted[:40],
        }[damage]
    )
    if damage == "missing":
        spec.unlink()
    second = start()
    assert f"{experiment}: {SPEC_NAME}" in caplog.text
    assert spec.read_bytes() == submitted
    worker = second.join("one")
    finished(second, experiment)
    assert bytes(second.shared.store(experiment).read(worker.tasks[0].spec)) == submitted
    end(second)


def test_a_spec_that_says_the_same_in_other_words_stays(start: Start) -> None:
    """A comment changes nothing."""
    first = start()
    experiment = first.submit()
    spec = first.shared.experiment_path(experiment) / SPEC_NAME
    end(first)
    spec.write_bytes(b"# as discussed\n" + spec.read_bytes())
    commented = spec.read_bytes()
    second = start()
    second.join("one")
    finished(second, experiment)
    assert spec.read_bytes() == commented
    end(second)


def test_a_running_one_that_cannot_be_used_is_left_out_alone(start: Start) -> None:
    """Its newest model is gone; another waits, and has its turn."""
    first = start()
    broken, sound = first.submit(name="broken"), first.submit(name="sound")
    first.status_when(lambda s: s.experiment is not None and s.experiment.state.value == "running")
    end(first)
    folder = first.shared.experiment_path(broken)
    for model in folder.glob("model-*"):
        model.unlink()
    before = contents(folder)
    second = start()
    second.join("one")
    finished(second, sound)
    one = listed(second)[broken]
    assert one.state is ExperimentState.FAILED
    assert one.reason is not None
    assert "its last lines are missing: it needs model-000000" in one.reason
    assert contents(folder) == before
    assert second.client.status(broken, 0, 0.0).experiment == one
    end(second)


def test_a_journal_of_an_older_build_is_left_out_and_named_in_one_line(start: Start) -> None:
    """Its spec lacks a field that every spec has today; another experiment has its turn."""
    first = start()
    old, sound = first.submit(name="old"), first.submit(name="sound")
    end(first)
    folder = first.shared.experiment_path(old)
    [segment] = segments(folder)
    texts = [text.replace(b'"device":"cpu",', b"") for text in whole_lines(segment.read_bytes())]
    segment.write_bytes(b"".join(map(seal, texts)))
    before = segment.read_bytes()
    second = start()
    second.join("one")
    finished(second, sound)
    one = listed(second)[old]
    assert one.state is ExperimentState.FAILED
    assert one.reason is not None
    assert "journal: an older build of Downpour wrote entry 1" in one.reason
    assert "\n" not in one.reason
    assert segment.read_bytes() == before
    end(second)


def test_a_damaged_record_costs_nothing_but_the_record(start: Start) -> None:
    """It serves people alone."""
    first = start()
    waiting = first.submit()
    end(first)
    (first.shared.experiment_path(waiting) / layout.RECORD_NAME).write_bytes(b"no fact\n" * 3)
    second = start()
    second.join("one")
    finished(second, waiting)
    end(second)


def test_the_list_keeps_the_order_of_submission(start: Start) -> None:
    """Whoever ended first, and under whichever manager."""
    first = start()
    names = [first.submit(name=name) for name in ("c", "b", "a")]
    first.client.cancel(names[1])
    end(first)
    second = start()
    names.append(second.submit(name="d"))
    assert list(listed(second)) == names
    end(second)


def test_folders_in_which_nothing_was_begun_are_removed(start: Start) -> None:
    """Left by managers and runs that were killed when they had made them; others stay."""
    first = start()
    root = first.shared.experiments
    end(first)
    for name in ("empty", "with-spec", "of-a-run", "alive", "notes"):
        (root / name).mkdir()
    (root / "with-spec" / SPEC_NAME).write_text(SMALL.to_toml())
    (root / "with-spec" / layout.RECORD_NAME).touch()
    (root / "with-spec" / f".tmp-{secrets.token_hex(4)}").write_bytes(b"half")
    (root / "of-a-run" / RUN_LOCK_NAME).touch()
    (root / "notes" / "mine.txt").write_text("keep this")
    held = lock_file(root / "alive" / RUN_LOCK_NAME)
    second = start()
    assert {path.name for path in root.iterdir()} == {"alive", "notes"}
    assert listed(second) == {}
    end(second)
    held.release()
    end(start())
    assert {path.name for path in root.iterdir()} == {"notes"}


def test_the_presence_of_managers_that_were_killed_is_removed(start: Start) -> None:
    """The lock beside it is free; that of one that lives is not."""
    living = start(embedded=True)
    presence = living.shared.presence
    there = set(presence.iterdir())
    for name in ("manager-dead", "manager-dead.lock"):
        (presence / name).touch()
    other = start()
    assert there < set(presence.iterdir())
    assert not list(presence.glob("*dead*"))
    end(other)
    assert set(presence.iterdir()) == there
    end(living)


def test_a_start_reads_no_journal_of_what_has_ended(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are; also of those that ended under a manager before the last."""
    first = start()
    names = [run_once(first, name="early", epochs=1)]
    end(first)
    second = start()
    second.join("two")
    names.append(run_once(second, name="late", epochs=1))
    end(second)
    run = start(embedded=True)
    run_once(run, epochs=1)
    end(run)
    end(start())

    read: list[Path] = []
    monkeypatch.setattr(takeover, "names_in", read.append)
    last = start()
    assert read == []
    assert list(listed(last)) == names
    assert {one.state for one in listed(last).values()} == {ExperimentState.FINISHED}
    manager = last.manager
    archive, spaces = manager._begun.archive, manager._spaces
    metrics = ManagerMetrics(manager._driver, archive, Counters(), spaces, term=3)
    told = {metric.name: metric.samples for metric in metrics()}
    assert {s.value for s in told["downpour_experiments"] if s.labels["state"] == "finished"} == {2}
    assert told["downpour_rounds"][0].value == 2
    end(last)


def test_a_list_of_what_has_ended_that_is_in_the_way_keeps_nobody_from_starting(
    start: Start,
) -> None:
    """As where the terms were removed, and are counted from 1 anew."""
    first = start()
    done = run_once(first, epochs=1)
    end(first)
    [kept] = first.shared.root.glob("ended-*")
    kept.rename(kept.with_name("ended-000002.jsonl"))
    for _ in range(2):
        following = start()
        assert listed(following)[done].state is ExperimentState.FINISHED
        end(following)


@pytest.mark.parametrize("damage", ["gone", "altered", "cut off"])
def test_the_list_of_what_has_ended_only_spares_reading(start: Start, damage: str) -> None:
    """Where it is damaged, journals are read; where folders were removed, they are not listed."""
    first = start()
    names = [run_once(first, name=name, epochs=1) for name in ("a", "b", "c")]
    end(first)
    [kept] = first.shared.root.glob("ended-*")
    content = kept.read_bytes()
    kept.write_bytes(content.replace(b'"finished"', b'"cancelled"', 1))
    if damage == "gone":
        kept.unlink()
    elif damage == "cut off":
        kept.write_bytes(content[:-9])
    shutil.rmtree(first.shared.experiment_path(names[1]))
    second = start()
    found = listed(second)
    assert list(found) == [names[0], names[2]]
    assert {one.state for one in found.values()} == {ExperimentState.FINISHED}
    end(second)


def test_status_tells_that_a_folder_was_removed(start: Start) -> None:
    """While it is gone, and with what to do; put back, the experiment goes on."""
    cluster = start()
    experiment, waits = cluster.submit(), cluster.submit(name="waits")
    folder = cluster.shared.experiment_path(experiment)
    aside = folder.rename(cluster.shared.root / "aside")
    cluster.manager.look_around()
    told = cluster.client.status(experiment, 0, 0.0).experiment
    assert told is not None
    assert told.reason is not None
    assert "held up: its folder is gone from" in told.reason
    assert "put it back, or cancel the experiment" in told.reason
    assert listed(cluster)[experiment] == told
    assert listed(cluster)[waits].reason is None
    aside.rename(folder)
    cluster.manager.look_around()
    assert listed(cluster)[experiment].reason is None
    cluster.join("one")
    finished(cluster, experiment)
    end(cluster)
