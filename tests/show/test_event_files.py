"""Event files, read back as TensorBoard reads them."""

import logging
import sys
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

from downpour.base.errors import FileCorrupt, MissingPackage, SpecError, Unreachable
from downpour.experiments.following import Follower
from downpour.files.store.layout import RECORD_NAME
from downpour.record import Result
from downpour.record.record import parse_lines, read_record
from downpour.record.record_lines import (
    AggregatedLine,
    ResourcesUsedLine,
    Sample,
    UpdatedLine,
)
from downpour.show.event_files import EndedRuns, EventFiles, write_events
from tests.record.lines import submitted

RECORDED = Path(__file__).parents[1] / "recorded"
HANDOFF = read_record(RECORDED / "handoff" / RECORD_NAME)
GESTURES = read_record(RECORDED / "gestures" / RECORD_NAME)

Points = dict[str, dict[int, float]]


def read_back(folder: Path) -> EventAccumulator:
    """Read a run's folder."""
    found = EventAccumulator(str(folder))
    found.Reload()
    return found


def points(folder: Path) -> Points:
    """Return each tag's values, by step; no step comes twice."""
    found = read_back(folder)
    read = {tag: found.Scalars(tag) for tag in found.Tags()["scalars"]}
    told = {tag: {event.step: event.value for event in events} for tag, events in read.items()}
    assert all(len(told[tag]) == len(events) for tag, events in read.items())
    return told


def test_scalars_are_those_of_the_result(tmp_path: Path) -> None:
    """Losses, accuracies, seconds and what stragglers cost, at the epochs as people count them."""
    write_events(HANDOFF, tmp_path)
    result = Result.from_record(HANDOFF)
    told = points(tmp_path / result.experiment)
    for epoch in result.rounds:
        at = epoch.epoch
        assert epoch.stragglers is not None
        assert told["loss/train"][at] == pytest.approx(epoch.train_loss)
        assert told["loss/test"][at] == pytest.approx(epoch.test_loss)
        assert told["accuracy/test"][at] == pytest.approx(epoch.accuracy)
        assert told["seconds/train"][at] == pytest.approx(epoch.train_seconds)
        assert told["seconds/evaluate"][at] == pytest.approx(epoch.evaluate_seconds)
        assert told["stragglers/moves"][at] == epoch.stragglers.moves
        assert told["stragglers/mitigation"][at] == pytest.approx(epoch.stragglers.mitigation)
        for label, accuracy in enumerate(epoch.class_accuracy):
            assert told[f"accuracy_by_class/{label}"][at] == pytest.approx(accuracy)
    assert told["parameters"] == {0: result.parameters}


def test_a_worker_that_trained_several_shards_took_their_mean(tmp_path: Path) -> None:
    """And one that trained none in an epoch has no point there."""
    write_events(HANDOFF, tmp_path)
    result = Result.from_record(HANDOFF)
    told = points(tmp_path / result.experiment)
    of_a = [t.completion_seconds for t in result.tasks if (t.worker, t.epoch) == ("a", 1)]
    assert len(of_a) > 1
    assert told["completion_seconds/a"][1] == pytest.approx(sum(of_a) / len(of_a))
    epochs_of_d = {task.epoch for task in result.tasks if task.worker == "d"}
    assert set(told["completion_seconds/d"]) == epochs_of_d != {1, 2, 3}


def test_what_was_not_measured_has_no_point(tmp_path: Path) -> None:
    """Rather than one that is not a number."""
    write_events(GESTURES, tmp_path)
    result = Result.from_record(GESTURES)
    told = points(tmp_path / result.experiment)
    measured = {e.epoch for e in result.rounds if e.train_loss is not None}
    assert set(told["loss/train"]) == measured < {e.epoch for e in result.rounds}


def test_the_spec_is_there_as_text_and_as_hyperparameters(tmp_path: Path) -> None:
    """To read, and to compare runs by."""
    write_events(HANDOFF, tmp_path, "a-name")
    found = read_back(tmp_path / "a-name")
    text = found.Tensors("spec")[0].tensor_proto.string_val[0].decode()
    assert '    policy = "handoff"' in text.splitlines()
    data = plugin_data_pb2.HParamsPluginData()
    data.ParseFromString(found.SummaryMetadata("_hparams_/session_start_info").plugin_data.content)
    values = data.session_start_info.hparams
    assert values["policy"].string_value == "handoff"
    assert values["shards"].number_value == 4


def test_times_of_day_follow_from_the_identifier(tmp_path: Path) -> None:
    """It holds when the experiment was submitted; the record has seconds since then."""
    first = 100.0, submitted(1, "one-20260102-030405-0a1b2c3d")
    write_events([first, *((100.0 + at, f) for at, f in HANDOFF[1:])], tmp_path)
    events = read_back(tmp_path / first[1].experiment).Scalars("parameters")
    assert [event.wall_time for event in events] == [1767323045.0 + 1.0]


def test_what_is_recorded_twice_has_one_point(tmp_path: Path) -> None:
    """A restarted manager may tell a thing again; what it told last counts."""
    write_events([*GESTURES, *GESTURES[3:]], tmp_path / "twice")
    write_events(GESTURES, tmp_path / "once")
    name = Result.from_record(GESTURES).experiment
    assert points(tmp_path / "twice" / name) == points(tmp_path / "once" / name)


def test_writing_again_replaces_what_was_written_and_nothing_else(tmp_path: Path) -> None:
    """The same record gives the same bytes; what others have put beside it stays."""
    write_events(GESTURES, tmp_path)
    folder = tmp_path / Result.from_record(GESTURES).experiment
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    (folder / "events.out.tfevents.7.somebody").write_bytes(b"theirs")
    write_events(GESTURES, tmp_path)
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert after == {**before, "events.out.tfevents.7.somebody": b"theirs"}


def test_a_folder_that_is_none_is_named(tmp_path: Path) -> None:
    """In one line, before anything is written."""
    (tmp_path / "file").touch()
    with pytest.raises(SpecError, match=r"tensorboard = '.*file': not a folder"):
        EventFiles(tmp_path / "file")


def test_a_record_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    """It may come from somewhere else."""
    with pytest.raises(FileCorrupt, match="cannot name a file"):
        write_events([(0.0, submitted(1, "../elsewhere"))], tmp_path / "runs")
    assert [path.name for path in tmp_path.rglob("*")] == ["runs"]


def test_without_the_package_its_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that one line says how to get it."""
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(
        MissingPackage, match=r"needs tensorboard; install downpour-sgd\[tensorboard\]"
    ):
        EventFiles(tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_event_files_grow_with_a_running_experiment(tmp_path: Path) -> None:
    """Line by line; in the end there is what one writing gives."""
    name = Result.from_record(HANDOFF).experiment
    lines = (RECORDED / "handoff" / RECORD_NAME).read_text().splitlines()
    first_round = next(n for n, line in enumerate(lines) if '"aggregated"' in line)
    told: list[str] = []

    def record(experiment: str, from_line: int) -> list[str]:
        assert experiment == name
        return told[from_line:]

    with Follower([EventFiles(tmp_path / "live")]) as follower:
        follower.follow(name, record)
        told += lines[:first_round]
        follower.follow(name, record)
        assert "loss/train" not in points(tmp_path / "live" / name)
        told.append(lines[first_round])
        follower.follow(name, record)
        assert set(points(tmp_path / "live" / name)["loss/train"]) == {1}
        told += lines[first_round + 1 :]
        follower.follow(name, record)
    write_events(HANDOFF, tmp_path / "once")
    assert points(tmp_path / "live" / name) == points(tmp_path / "once" / name)


def test_event_files_that_cannot_be_written_cost_no_experiment(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once, and the run goes on."""
    name = Result.from_record(HANDOFF).experiment
    lines = (RECORDED / "handoff" / RECORD_NAME).read_text().splitlines()
    with caplog.at_level(logging.WARNING), Follower([EventFiles(tmp_path / "live")]) as follower:
        (tmp_path / "live" / name).touch()
        for _ in range(2):
            follower.follow(name, lambda _, from_line: lines[from_line:])
    assert [r.getMessage().partition(": ")[0] for r in caplog.records] == [
        "no more event files are written"
    ]


def test_a_manager_that_is_gone_costs_no_more_than_event_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The caller that waits for the experiment gets the error there."""

    def gone(*_: object) -> list[str]:
        raise Unreachable("127.0.0.1:1", "connection refused")

    with caplog.at_level(logging.WARNING), Follower([EventFiles(tmp_path)]) as follower:
        follower.follow("any", gone)
    assert "no more event files are written: 127.0.0.1:1 cannot be" in caplog.text


def test_runs_that_have_ended_are_written_one_by_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Under their folders' names; after one that cannot be, none is, and that is said once."""
    runs = EndedRuns(tmp_path / "runs")
    runs.write(RECORDED / "handoff" / RECORD_NAME)
    assert "accuracy/test" in points(tmp_path / "runs" / "handoff")
    (tmp_path / "runs" / "gestures").touch()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            runs.write(RECORDED / "gestures" / RECORD_NAME)
    assert len(caplog.records) == 1


def test_what_processes_used_is_told_by_epoch(tmp_path: Path) -> None:
    """Mean shares of time, the most memory and threads; a worker that was not sampled has none."""

    def used(worker: str, shard: int, *samples: tuple[float, int, int, float]) -> ResourcesUsedLine:
        return ResourcesUsedLine(
            round=0,
            shard=shard,
            attempt=0,
            worker=worker,
            samples=tuple(Sample(1.0, *sample) for sample in samples),
        )

    ended = next(place for place, (_, f) in enumerate(HANDOFF) if isinstance(f, AggregatedLine))
    told = [
        used("a", 0, (1.0, 100, 3, 0.0), (0.5, 300, 2, 0.2)),
        used("a", 1, (0.0, 200, 4, 0.1)),
        used("b", 2, (0.25, 50, 1, 0.0)),
        used("c", 3),
    ]
    record = [*HANDOFF[:ended], *((1.0, fact) for fact in told), *HANDOFF[ended:]]
    write_events(record, tmp_path, "one")
    found = points(tmp_path / "one")
    assert found["cpu_share/a"] == {1: 0.5}
    assert found["io_wait/a"] == pytest.approx({1: 0.1})
    assert (found["memory_bytes/a"], found["threads/a"]) == ({1: 300.0}, {1: 4.0})
    assert found["cpu_share/b"] == {1: 0.25}
    assert "threads/c" not in found


def test_half_a_record_makes_half_a_run(tmp_path: Path) -> None:
    """An experiment need not have ended; and of none there is nothing to write."""
    write_events(HANDOFF[:1], tmp_path)
    assert points(tmp_path / Result.from_record(HANDOFF).experiment) == {}
    write_events(parse_lines([]), tmp_path / "none")
    assert list((tmp_path / "none").iterdir()) == []


def test_a_task_that_was_trained_again_is_drawn_once(tmp_path: Path) -> None:
    """A worker's seconds are those of the update that counts, while an experiment runs, too."""
    place = next(n for n, (_, fact) in enumerate(GESTURES) if isinstance(fact, UpdatedLine))
    at, first = GESTURES[place]
    assert isinstance(first, UpdatedLine)
    lost = replace(first, completion_seconds=90.0)
    with closing(EventFiles(tmp_path)) as files:
        files.take([*GESTURES[:place], (at, lost), *GESTURES[place:]])
    again = points(tmp_path / Result.from_record(GESTURES).experiment)
    assert again[f"completion_seconds/{first.worker}"][1] == first.completion_seconds
