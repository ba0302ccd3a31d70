"""A result is what the record tells, at any moment of an experiment."""

import copy
import dataclasses
import json
import math
import pickle
import sys
from pathlib import Path

import pytest

from downpour.base.errors import FileCorrupt, FileMissing, MissingPackage, SpecError
from downpour.base.states import ExperimentState
from downpour.record import rows
from downpour.show.notebook import Result

FOLDER = Path(__file__).parents[1] / "recorded" / "gestures"
LINES = (FOLDER / "record.jsonl").read_text(encoding="utf-8").splitlines()


@pytest.fixture
def result() -> Result:
    """A finished experiment: three epochs, the second not evaluated and with a failed attempt."""
    return Result.read(FOLDER)


def test_a_result_says_in_one_line_what_it_is(result: Result) -> None:
    """State, epochs, accuracy and seconds; a reason where it has one, but never its whole spec."""
    assert repr(result) == "<Result gestures-7f3a: finished, 3 epochs, accuracy 91.25%, 7.8 s>"
    failed = dataclasses.replace(
        result, state=ExperimentState.FAILED, reason="x" * 10_000, rounds=(), epochs=()
    )
    assert repr(failed).startswith("<Result gestures-7f3a: failed, 0 epochs, 7.8 s, xxx")
    assert len(repr(failed)) < 300


def test_a_result_can_be_copied_and_sent(result: Result) -> None:
    """Its tasks and spans, too, which are packed."""
    again = copy.deepcopy(result)
    assert (again, again.spans) == (result, result.spans)
    assert b"worker" in pickle.dumps(result)
    assert dataclasses.asdict(result)["tasks"] == result.tasks


def test_a_notebook_shows_the_table(result: Result) -> None:
    """The epochs in straight columns, as in a terminal; what a name holds is text there, too."""
    named = dataclasses.replace(result, name="<script>")
    html = named._repr_html_()
    assert html.startswith('<pre style="white-space: pre; overflow-x: auto; line-height: normal; ')
    assert "91.25" in html
    assert "<script>" not in html


@pytest.mark.parametrize(("line", "lacking"), [(0, "device"), (3, "numeric_class"), (-1, "reason")])
def test_a_record_of_an_older_build_is_refused_in_one_line(
    tmp_path: Path, line: int, lacking: str
) -> None:
    """Whether its spec or another line lacks a field."""
    lines = [json.loads(text) for text in LINES]
    fields = lines[line]["spec"] if line == 0 else lines[line]
    del fields[lacking]
    (tmp_path / "record.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in lines))
    with pytest.raises(FileCorrupt, match="is not a fact of an experiment: an older build of Down"):
        Result.read(tmp_path)


def test_a_folder_may_be_text(result: Result) -> None:
    """What is not a folder, or has no record, is refused in one line."""
    assert Result.read(str(FOLDER)) == result
    with pytest.raises(SpecError, match="folder = ''"):
        Result.read("")
    with pytest.raises(FileMissing, match="nowhere"):
        Result.read("nowhere")


def test_epochs_count_from_one(result: Result) -> None:
    """The record's round 0 is the first epoch, with what it cost and how good the model became."""
    first = result.rounds[0]
    assert [r.epoch for r in result.rounds] == [1, 2, 3]
    assert (first.accuracy, first.class_accuracy) == (0.45, (0.5, 0.4, None))
    assert (first.train_loss, first.test_loss) == (1.3, 1.1)
    assert (first.train_seconds, first.aggregate_seconds, first.evaluate_seconds) == (
        2,
        0.004,
        0.08,
    )
    assert first.bytes == 3 * 4000, "two updates and the model"


def test_epochs_sum_up_their_rounds() -> None:
    """Three rounds, two of them an epoch: an evaluation is of the epoch's last model."""
    submitted = json.loads(LINES[0])
    submitted["spec"] |= {"meet": 2, "epochs": 2, "rounds_before": 0}
    result = Result.from_lines([json.dumps(submitted), *LINES[1:]])
    assert [(r.epoch, r.round) for r in result.rounds] == [(1, 1), (1, 2), (2, 3)]
    assert [(r.epoch, r.round) for r in result.epochs] == [(1, 2), (2, 3)]
    first, second = result.epochs
    rounds = result.rounds
    assert first.train_seconds == rounds[0].train_seconds + rounds[1].train_seconds
    assert (first.accuracy, second.accuracy) == (None, 0.9125), "round 1 ended no epoch"
    assert first.bytes == rounds[0].bytes + rounds[1].bytes
    assert first.train_loss is None, "that of one of its rounds is no number"
    assert first.stragglers is not None
    assert [(t.epoch, t.round) for t in result.tasks[::2]] == [(1, 1), (1, 2), (2, 3)]
    assert len(result.to_csv().splitlines()) == 1 + 2
    written = json.loads(result.to_json())
    assert (len(written["rounds"]), len(written["epochs"])) == (3, 2)
    assert repr(result).startswith("<Result gestures-7f3a: finished, 2 epochs")
    assert result.reason is not None, "it ended before the fourth"


def test_the_accuracy_is_the_last_measured(result: Result) -> None:
    """An epoch that was not evaluated has none, and does not hide the last one."""
    assert result.rounds[1].accuracy is None
    assert result.accuracy == 0.9125


def test_a_finished_experiment_names_its_model(result: Result) -> None:
    """The file lies in the experiment's folder; without a folder its path is unknown."""
    assert (result.state, result.reason, result.total_seconds) == ("finished", None, 7.76)
    assert result.model_file == FOLDER / "model-3.safetensors"
    assert Result.from_lines(LINES).model_file is None


def test_training_is_timed_apart_from_evaluation(result: Result) -> None:
    """The sums are those of the epochs."""
    assert result.train_seconds == pytest.approx(7.0)
    assert result.aggregate_seconds == pytest.approx(0.013)
    assert result.evaluate_seconds == pytest.approx(0.17)


def test_tasks_tell_who_trained_what(result: Result) -> None:
    """One task a shard and epoch, in order; failed attempts stand apart."""
    assert [(t.epoch, t.shard, t.attempt, t.worker) for t in result.tasks[:4]] == [
        (1, 0, 0, "worker-2"),
        (1, 1, 0, "worker-10"),
        (2, 0, 1, "worker-10"),
        (2, 1, 0, "worker-10"),
    ]
    (failure,) = result.failures
    assert (failure.epoch, failure.worker, failure.failure) == (2, "worker-2", "out-of-memory")


@pytest.mark.parametrize(
    ("lines", "state", "epochs"),
    [(LINES[:1], "waiting", 0), (LINES[:4], "running", 0), (LINES[:12], "running", 1)],
)
def test_a_result_can_be_made_at_any_moment(lines: list[str], state: str, epochs: int) -> None:
    """What has not happened yet is simply not there."""
    result = Result.from_lines(lines)
    assert (result.state, len(result.rounds), result.model_file) == (state, epochs, None)
    assert json.loads(result.to_json())["state"] == state


@pytest.mark.parametrize(
    ("line", "state", "asked_wrongly"),
    [
        (
            '{"at": 9, "kind": "failed", "reason": "no luck", "asked_wrongly": false}',
            "failed",
            False,
        ),
        ('{"at": 9, "kind": "failed", "reason": "no luck", "asked_wrongly": true}', "failed", True),
        ('{"at": 9, "kind": "cancelled", "reason": "no luck"}', "cancelled", False),
    ],
)
def test_an_end_without_a_model_says_why(
    line: str,
    state: str,
    asked_wrongly: bool,  # noqa: FBT001 - a row of the table above
) -> None:
    """The reason comes through unchanged; the time is how far the record goes."""
    result = Result.from_lines([*LINES[:5], line], FOLDER)
    assert (result.state, result.reason, result.total_seconds) == (state, "no luck", 9)
    assert result.asked_wrongly is asked_wrongly
    assert result.model_file is None


def test_shards_are_counted_when_they_are_made() -> None:
    """A spec may leave their number to the manager, which knows it once the set is split."""
    open_spec = LINES[0].replace('"shards": 2}', '"shards": 0}')
    assert Result.from_lines([open_spec]).shards == 0
    assert Result.from_lines([open_spec, LINES[3]]).shards == 2


@pytest.mark.parametrize("kept", [64, 0], ids="keeps {} rounds".format)
def test_a_line_that_is_recorded_twice_counts_once(
    kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restarted manager may tell a thing again, even of a round that we have forgotten."""
    monkeypatch.setattr(rows, "_ROUNDS_KEPT", kept)
    again = Result.from_lines([*LINES[:9], *LINES[4:]], FOLDER)
    assert again == Result.read(FOLDER)


def lost_and_again(lines: list[str], worker: str) -> list[str]:
    """Have the second update of the second round lost, and the shard trained by a worker again."""
    place = next(
        n
        for n, line in enumerate(lines)
        if '"round": 1, "shard": 0, "attempt": 1' in line and '"updated"' in line
    )
    update = json.loads(lines[place])
    named = {name: update[name] for name in ("round", "shard", "worker")}
    failed = {"at": 5.61, "kind": "attempt-failed", **named, "attempt": 1}
    failed |= {"failure": "store", "reason": "update: no such file"}
    assigned = {"at": 5.61, "kind": "assigned", **named, "attempt": 2, "worker": worker}
    again = {**update, "attempt": 2, "worker": worker}
    added = [failed, {**assigned, "reason": "again"}, again]
    return [*lines[: place + 1], *map(json.dumps, added), *lines[place + 1 :]]


def test_a_task_whose_update_was_lost_counts_once_and_is_marked(result: Result) -> None:
    """As after a crash that took the end of a journal: the task has its last update alone."""
    told = Result.from_lines(lost_and_again(LINES, worker="worker-2"))
    assert len(told.tasks) == len(result.tasks)
    [task] = [task for task in told.tasks if task.retrained]
    assert (task.epoch, task.shard, task.attempt, task.worker) == (2, 0, 2, "worker-2")
    assert [fault.update_lost for fault in told.failures] == [False, True]
    assert told.stragglers is not None
    assert told.stragglers.extra_work is not None
    assert 0 < told.stragglers.extra_work < 1, "one update of six was trained twice"


def test_until_it_is_trained_again_a_lost_update_is_no_task_of_a_result() -> None:
    """A result that is read meanwhile does not show what counts no longer."""
    lines = lost_and_again(LINES, worker="worker-2")
    place = next(n for n, line in enumerate(lines) if "no such file" in line)
    meanwhile = Result.from_lines(lines[: place + 1])
    assert (2, 0) not in {(task.epoch, task.shard) for task in meanwhile.tasks}


def test_a_record_without_a_submission_is_no_experiment() -> None:
    """Half a record is refused, not guessed at."""
    with pytest.raises(FileCorrupt, match="no submission"):
        Result.from_lines(LINES[1:])


def test_a_folder_without_a_record_is_named(tmp_path: Path) -> None:
    """A mistyped folder costs one line."""
    with pytest.raises(FileMissing, match=r"record\.jsonl"):
        Result.read(tmp_path)


def test_json_holds_everything(result: Result) -> None:
    """All of a result can be exported, without NaN."""
    fields = json.loads(result.to_json())
    assert fields["rounds"][1]["train_loss"] is None
    assert fields["tasks"][0]["worker"] == "worker-2"
    assert fields["model_file"].endswith("gestures/model-3.safetensors")


def test_csv_has_a_row_an_epoch(result: Result) -> None:
    """What was not measured is empty, and every class has a column."""
    header, first, second, _ = result.to_csv().splitlines()
    assert header == (
        "epoch,round,accuracy,train_loss,test_loss,train_seconds,aggregate_seconds,"
        "evaluate_seconds,bytes,"
        "round_seconds,ideal_seconds,wait_seconds,mitigation,extra_work,gradient_lost,moves,"
        "accuracy_class_0,accuracy_class_1,accuracy_class_2"
    )
    assert first == "1,1,0.45,1.3,1.1,2.0,0.004,0.08,12000,2.0,1.5,2.0,,0.0,0.0,0,0.5,0.4,"
    assert second.startswith("2,2,,,,3.0,0.005,0.0,12000,3.0")


def test_a_plain_run_tells_nothing_of_stragglers() -> None:
    """A result has no costs of stragglers if the policy only waited and no work was lost."""
    plain = Result.from_lines(LINES[:10], FOLDER)
    assert plain.stragglers is None
    assert "stragglers" not in plain.to_json()
    assert plain.to_csv().splitlines()[0] == (
        "epoch,round,accuracy,train_loss,test_loss,train_seconds,aggregate_seconds,"
        "evaluate_seconds,bytes,"
        "accuracy_class_0,accuracy_class_1,accuracy_class_2"
    )


def test_csv_of_tasks_has_a_row_a_task(result: Result) -> None:
    """Also before there is one."""
    assert len(result.to_csv("tasks").splitlines()) == 1 + 6
    assert (
        Result.from_lines(LINES[:1]).to_csv("tasks").startswith("epoch,round,shard,attempt,worker,")
    )


def test_frames_hold_numbers(result: Result) -> None:
    """What was not measured is NaN there, so that columns stay numeric."""
    narrow = ["epoch", "accuracy", "train_loss", "test_loss", "train_seconds", "bytes"]
    assert list(result.to_frame().columns) == narrow
    frame = result.to_frame(every_column=True)
    assert frame["accuracy"].tolist()[::2] == [0.45, 0.9125]
    assert math.isnan(frame["accuracy"][1])
    assert frame["accuracy_class_2"].dtype == float
    tasks = result.tasks_frame()
    assert tasks.groupby("worker")["samples"].sum().to_dict() == {"worker-10": 600, "worker-2": 300}
    assert Result.from_lines(LINES[:1]).to_frame().columns[0] == "epoch"


def test_without_pandas_the_user_learns_what_to_install(
    result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, and the rest of a result works without it."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingPackage, match=r"needs pandas; install downpour-sgd\[frames\]"):
        result.to_frame()
