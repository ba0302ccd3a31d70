"""A manager takes up what managers of its directory wrote, each experiment by itself."""

import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from downpour.base.states import ExperimentState
from downpour.cluster.manager import takeover
from downpour.files.store import SPEC_NAME, layout
from downpour.files.store.directory import names_in
from downpour.files.store.shared_directory import RUN_LOCK_NAME, is_abandoned, lock_file
from downpour.network.rpc.messages import ExperimentSummary, TaskMessage
from downpour.record.journal import seal, segments, whole_lines
from tests.cluster.manager.conftest import SMALL, Cluster, FakeWorker, Start, diligent, started_in

PATIENCE_SECONDS = 30.0


def run_once(cluster: Cluster, **changes: Any) -> str:
    """Have a worker train the small spec; returns the experiment."""
    experiment = cluster.submit(**changes)
    if not cluster.workers:  # fakes send no heartbeats, and the first preparation imports torch
        cluster.status_when(lambda s: bool(s.tasks) or not s.experiment, experiment)
        cluster.join("one")
    cluster.result_of(experiment)
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


def test_a_manager_takes_up_no_experiment_of_a_run(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of them, one after the other; a manager starts beside that, and starts again."""
    for _ in range(2):
        run = start(embedded=True)
        run_once(run)
        run.close()
    runs = {path.name: contents(path) for path in run.shared.experiments.iterdir()}
    assert not any(name.startswith("journal") for files in runs.values() for name in files)
    for _ in range(2):
        manager = start()
        assert listed(manager) == {}
        manager.close()
    assert {path.name: contents(path) for path in run.shared.experiments.iterdir()} == runs
    looked: list[Path] = []

    def look(folder: Path) -> list[str]:
        looked.append(folder)
        return names_in(folder)

    monkeypatch.setattr(takeover, "names_in", look)
    start().close()
    assert set(looked) == {run.shared.root}, "the first manager noted that none need look at them"


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
    first.close()
    before = contents(run.shared.experiment_path(its))
    second = start()
    assert set(listed(second)) == {mine}
    second.join("one")
    second.result_of(mine)
    assert contents(run.shared.experiment_path(its)) == before
    go_on.set()
    run.result_of(its)


def test_a_run_holds_its_folder_while_it_lives(start: Start) -> None:
    """So that others can tell one that is abandoned."""
    run = start(embedded=True)
    experiment = run.submit()
    lock = run.shared.experiment_path(experiment) / RUN_LOCK_NAME
    assert lock.exists()
    assert not is_abandoned(lock)
    run.close()
    assert is_abandoned(lock)


def test_copied_and_foreign_experiments_are_passed_by(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A line names each; nothing in them changes, and the others go on."""
    elsewhere = started_in(tmp_path / "elsewhere")
    foreign = elsewhere.submit(name="foreign", epochs=9)
    elsewhere.close()
    first = start()
    first.join("one")
    done, going = run_once(first, name="done"), first.submit(name="going")
    first.close()
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
    second.result_of(going)
    assert {name: contents(root / name) for name in strangers} == before


def test_a_directory_that_is_restored_as_a_whole_is_the_same_cluster(
    start: Start, tmp_path: Path
) -> None:
    """Its terms tell so."""
    first = start()
    experiment = first.submit()
    first.close()
    # Without the cache of datasets, in which a thread may still prepare the experiment's.
    cache = shutil.ignore_patterns("datasets")
    shutil.copytree(tmp_path / "shared", tmp_path / "restored", ignore=cache)
    second = started_in(tmp_path / "restored")
    second.join("one")
    second.result_of(experiment)


def test_an_ended_experiment_needs_no_spec(start: Start) -> None:
    """Whether a manager has noted the end or must read the journal."""
    first = start()
    done = run_once(first)
    first.close()
    (first.shared.experiment_path(done) / SPEC_NAME).unlink()
    for noted in (True, False):
        if not noted:
            forget(first)
        following = start()
        assert listed(following)[done].state is ExperimentState.FINISHED
        assert following.record(done)
        following.close()


@pytest.mark.parametrize("lines", [1, 2, 5, 11])
def test_a_finished_experiment_whose_last_lines_are_lost_keeps_its_result(
    start: Start, lines: int
) -> None:
    """It ends anew, the same, or is left out; whatever it is, the manager starts and goes on."""
    first = start()
    done, next_one = run_once(first), first.submit(name="next", epochs=1)
    first.result_of(next_one)
    folder = first.shared.experiment_path(done)
    result = (folder / layout.FINAL_NAME).read_bytes()
    first.close()
    cut(folder, lines)
    forget(first)

    second = start()
    second.join("one")
    other = second.submit(name="other", epochs=1)
    second.result_of(other)
    one = listed(second)[done]
    if one.state is not ExperimentState.FINISHED:
        assert one.reason is not None
        assert "left out: journal: its last lines are missing" in one.reason
    assert (folder / layout.FINAL_NAME).read_bytes() == result


def test_workers_follow_the_spec_that_was_submitted(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever became of its file while no manager was there; the journal has it."""
    harms: dict[str, Callable[[Path], object]] = {
        "missing": Path.unlink,
        "edited": lambda spec: spec.write_text(spec.read_text().replace("seed = 0", "seed = 1")),
        "not-text": lambda spec: spec.write_bytes(b"\xff\xfe"),
        "cut-off": lambda spec: spec.write_bytes(spec.read_bytes()[:40]),
    }
    first = start()
    names = [first.submit(name=damage, epochs=1) for damage in harms]
    specs = [first.shared.experiment_path(name) / SPEC_NAME for name in names]
    first.close()
    submitted = [spec.read_bytes() for spec in specs]
    for harm, spec in zip(harms.values(), specs, strict=True):
        harm(spec)
    second = start()
    assert all(f"{name}: {SPEC_NAME}" in caplog.text for name in names)
    assert [spec.read_bytes() for spec in specs] == submitted
    worker = second.join("one")
    for name in names:
        second.result_of(name)
    read = {
        one.id.experiment: second.shared.store(one.id.experiment).read(one.spec)
        for one in worker.tasks
    }
    assert [bytes(read[name]) for name in names] == submitted


def test_a_file_that_changes_no_result_may_be_edited(start: Start) -> None:
    """The experiment goes on; a spec that says the same in other words stays."""
    first = start()
    experiment = first.submit()
    first.close()
    folder = first.shared.experiment_path(experiment)
    spec = folder / SPEC_NAME
    edited = b"# as discussed\n" + spec.read_bytes()
    spec.write_bytes(edited)
    (folder / layout.RECORD_NAME).write_bytes(b"no fact\n" * 3)  # which serves people alone
    second = start()
    second.join("one")
    second.result_of(experiment)
    assert spec.read_bytes() == edited


def lose_the_model(folder: Path) -> None:
    """Remove an experiment's versions."""
    for model in folder.glob("model-*"):
        model.unlink()


def lose_the_first_line(folder: Path) -> None:
    """Cut the beginning of a journal off."""
    [segment] = segments(folder)
    segment.write_bytes(b"".join(segment.read_bytes().splitlines(keepends=True)[1:]))


def age(folder: Path) -> None:
    """Remove a field of the spec that an older build did not have."""
    [segment] = segments(folder)
    texts = [text.replace(b'"device":"cpu",', b"") for text in whole_lines(segment.read_bytes())]
    segment.write_bytes(b"".join(map(seal, texts)))


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lose_the_model, "its last lines are missing: it needs model-000000"),
        (lose_the_first_line, "left out: journal: entry 1 is missing"),
        (age, "journal-000001-0001.jsonl: an older build of Downpour wrote entry 1"),
    ],
)
def test_a_damaged_experiment_is_left_out_alone(
    start: Start, caplog: pytest.LogCaptureFixture, harm: Callable[[Path], None], reason: str
) -> None:
    """One line names it, its files stay as they are, and the next experiment has its turn."""
    first = start()
    broken, sound = first.submit(name="broken"), first.submit(name="sound")
    first.status_when(lambda s: s.experiment is not None and s.experiment.state.value == "running")
    first.close()
    folder = first.shared.experiment_path(broken)
    harm(folder)
    before = contents(folder)
    second = start()
    assert f"leaves out experiment {broken}" in caplog.text
    second.join("one")
    second.result_of(sound)
    summary = listed(second)[broken]
    assert summary.state is ExperimentState.FAILED
    assert summary.reason is not None
    assert reason in summary.reason
    assert "\n" not in summary.reason
    assert contents(folder) == before
    assert second.client.status(broken, 0, 0.0).experiment == summary


def test_folders_in_which_nothing_was_begun_are_removed(start: Start) -> None:
    """Left by managers and runs that were killed when they had made them; others stay."""
    first = start()
    root = first.shared.experiments
    first.close()
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
    second.close()
    held.release()
    start().close()
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
    other.close()
    assert set(presence.iterdir()) == there


def test_the_list_of_ended_experiments_only_spares_reading(start: Start) -> None:
    """Where it is damaged, journals are read; where folders were removed, they are not listed.

    It is of a later term where the terms were removed, and are counted from 1 anew.
    """
    harms: tuple[Callable[[Path], object], ...] = (
        Path.unlink,
        lambda ended: ended.write_bytes(
            ended.read_bytes().replace(b'"finished"', b'"cancelled"', 1)
        ),
        lambda ended: ended.write_bytes(ended.read_bytes()[:-9]),
        lambda ended: ended.rename(ended.with_name("ended-000099.jsonl")),
    )
    first = start()
    names = [run_once(first, name=name, epochs=1) for name in ("a", "b", "c")]
    first.close()
    shutil.rmtree(first.shared.experiment_path(names[1]))
    for harm in harms:
        [ended] = first.shared.root.glob("ended-*")
        harm(ended)
        for _ in range(2):
            following = start()
            states = {name: summary.state for name, summary in listed(following).items()}
            assert states == dict.fromkeys((names[0], names[2]), ExperimentState.FINISHED)
            following.close()


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
    assert "held up" not in (listed(cluster)[waits].reason or "")
    aside.rename(folder)
    cluster.manager.look_around()
    assert listed(cluster)[experiment].reason is None
    cluster.join("one")
    cluster.result_of(experiment)
