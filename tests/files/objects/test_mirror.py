"""Logs in a bucket: another machine goes on from what was durable."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from obstore.store import MemoryStore

from downpour.base.errors import SharedDirectoryError
from downpour.core.node.journal import Line
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.files.store import SharedDirectory
from downpour.files.store.bucket import Bucket
from downpour.files.store.layout import RECORD_NAME
from downpour.files.store.lease import Leader
from downpour.record import mirror
from downpour.record.journal import Journal, read_journal, segments, term_of
from downpour.record.mirror import (
    FOLDER,
    MirrorCopy,
    fetch_journals,
    journal_of,
    recorded_in,
)
from downpour.record.record import RecordReader, read_record
from tests.files.objects.cloud import URL, Cloud
from tests.record.test_journal import CHECKPOINT
from tests.specs import plain_spec

SUBMITTED = on.ExperimentSubmitted(
    at_seconds=0.0, experiment="one", spec=plain_spec(shards=2, split="class")
)
DROPPED = out.Dropped(cause=1, experiment="one", round=0, shards=(1,), reason="late")


class Failing(Bucket):
    """A bucket that refuses to create objects while it is `away`, and sometimes makes them."""

    away = False
    makes_them = False

    def put_new(self, key: str, content: bytes | Path, *, mark: str = "") -> None:
        if not Failing.away or Failing.makes_them:
            super().put_new(key, content, mark=mark)
        if Failing.away:
            raise SharedDirectoryError(self.url, "away")


def leader(term: int) -> Leader:
    """The manager of a term."""
    return Leader(term=term, addresses=(), hostname="", pid=1, cluster="c")


def begun(shared: SharedDirectory, term: int = 1) -> Journal:
    """The log of an experiment that was submitted."""
    shared.create_experiment("one")
    journal = journal_of(shared, "one", leader(term))
    journal.append(1, 0.0, SUBMITTED)
    journal.commit()
    return journal


def lines_on(shared: SharedDirectory) -> list[Line]:
    """What a manager on this machine reads."""
    fetch_journals(shared)
    return read_journal(shared.experiment_path("one"))


def objects(cloud: Cloud) -> list[str]:
    """The objects of the experiment's journal."""
    return Bucket(URL, cloud.objects).names(f"{FOLDER}/one")


def test_another_machine_reads_what_was_committed(cloud: Cloud) -> None:
    """The log's durable lines."""
    first, second = cloud.on("first", create=True), cloud.on("second", create=True)
    journal = begun(first)
    journal.append(2, 1.0, DROPPED)
    journal.commit()
    assert lines_on(second) == read_journal(first.experiment_path("one"))


def test_a_reader_has_the_records(cloud: Cloud, tmp_path: Path) -> None:
    """Of the experiment that is wanted, or of the last ones."""
    first = cloud.on("first", create=True)
    begun(first)
    told = read_record(first.experiment_path("one") / RECORD_NAME)
    read = tmp_path / "read"
    ways: list[dict[str, Any]] = [{"experiment": "two"}, {"experiment": "one"}, {"last": 1}, {}]
    for wanted in ways:
        read.mkdir()
        MirrorCopy(cloud.on("reader"), read).fetch(**wanted)
        there = [path.name for path in read.iterdir()]
        assert there == ([] if wanted == {"experiment": "two"} else ["one"])
        assert not there or read_record(read / "one" / RECORD_NAME) == told != []
        shutil.rmtree(read)


def test_a_copy_is_brought_up_to_date_while_journals_grow(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each object is fetched once; a reader that follows the copy sees what it would see there."""
    monkeypatch.setattr(mirror, "GAINS_MAX", 3)
    first = cloud.on("first", create=True)
    journal, copied = begun(first), MirrorCopy(cloud.on("reader"), tmp_path)
    fetched: list[str] = []
    get = Bucket.get

    def noted(bucket: Bucket, key: str) -> bytes:
        fetched.append(key)
        return get(bucket, key)

    monkeypatch.setattr(Bucket, "get", noted)
    copied.fetch()
    reader = RecordReader(tmp_path / "one")
    for second in range(2, 9):
        journal.append(second, float(second), DROPPED)
        journal.commit()
        copied.fetch("one" if second % 2 else "")
        told = list(RecordReader(first.experiment_path("one")).all_lines())
        assert list(reader.all_lines()) == told
        assert len(told) == second
    assert len(fetched) == len(set(fetched)) == 8
    copied.fetch("two")
    assert [path.name for path in tmp_path.iterdir() if path.name == "two"] == []


def test_a_reader_can_list_whose_records_there_are(cloud: Cloud, tmp_path: Path) -> None:
    """By their names alone; a folder has no journals in a bucket."""
    assert recorded_in(cloud.on("reader")) == set()
    begun(cloud.on("first", create=True))
    assert recorded_in(cloud.on("reader")) == {"one"}
    assert recorded_in(SharedDirectory(tmp_path)) == set()


def test_a_volatile_entry_takes_no_request(cloud: Cloud) -> None:
    """It comes with the next commit that must be."""
    first, second = cloud.on("first", create=True), cloud.on("second", create=True)
    journal = begun(first)
    before = objects(cloud)
    journal.append(2, 1.0, DROPPED)
    journal.commit(durably=False)
    assert objects(cloud) == before
    journal.append(3, 2.0, DROPPED)
    journal.commit()
    assert len(lines_on(second)) == 3


def test_a_machine_that_has_led_last_keeps_its_own_files(cloud: Cloud) -> None:
    """They were written first, so nothing of the bucket is missing there."""
    first = cloud.on("first", create=True)
    journal = begun(first)
    journal.append(2, 1.0, DROPPED)
    journal.commit(durably=False)
    assert len(lines_on(first)) == 2


def test_files_of_a_machine_that_led_before_are_replaced(cloud: Cloud) -> None:
    """With what it had not made durable: its successor never saw that, and went on without."""
    first, second = cloud.on("first", create=True), cloud.on("second", create=True)
    journal = begun(first)
    journal.append(2, 1.0, DROPPED)
    journal.commit(durably=False)
    taken_up = lines_on(second)
    assert len(taken_up) == 1
    later = journal_of(second, "one", leader(2), taken_up)
    later.append(2, 5.0, SUBMITTED)
    later.commit()
    assert [line.at_seconds for line in lines_on(first)] == [0.0, 0.0, 5.0]
    assert term_of(segments(first.experiment_path("one"))[-1]) == 2


def test_late_objects_of_a_replaced_manager_do_not_count(cloud: Cloud) -> None:
    """Its objects are of its term, below the first one of its successor."""
    first, second, third = (cloud.on(name, create=True) for name in ("first", "second", "third"))
    journal = begun(first)
    later = journal_of(second, "one", leader(2), lines_on(second))
    later.commit()
    for number in (2, 3):
        journal.append(number, 7.0, DROPPED)
        journal.commit()
    assert [line.at_seconds for line in lines_on(third)] == [0.0, 0.0]


def test_a_manager_that_was_away_since_its_term_began_removes_nothing_of_its_successor(
    cloud: Cloud,
) -> None:
    """It had not put anything yet, and finds the successor's objects beside those that it read."""
    first, second, third = (cloud.on(name, create=True) for name in ("first", "second", "third"))
    begun(first)
    away = journal_of(second, "one", leader(2), lines_on(second))
    later = journal_of(third, "one", leader(3), lines_on(third))
    later.append(2, 5.0, DROPPED)
    later.commit()
    away.commit()
    later.append(3, 6.0, DROPPED)
    later.commit()
    assert [line.at_seconds for line in lines_on(cloud.on("fourth"))] == [0.0, 0.0, 5.0, 6.0]


def test_objects_are_put_together(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """After 256, and at the end: an experiment then has few objects to fetch."""
    monkeypatch.setattr(mirror, "GAINS_MAX", 5)
    first, second = cloud.on("first", create=True), cloud.on("second", create=True)
    journal = begun(first)
    for number in range(2, 20):
        journal.append(number, float(number), DROPPED)
        journal.commit()
        assert len(objects(cloud)) <= 5
    assert len(lines_on(second)) == 19
    journal.begin_anew(20, 20.0, CHECKPOINT)
    journal.commit()
    journal.append(21, 21.0, DROPPED)
    journal.commit()
    journal.append(22, 22.0, DROPPED)
    journal.commit(durably=False)
    journal.close()
    [name] = objects(cloud)
    assert name.endswith("whole")
    assert [line.order for line in lines_on(cloud.on("third", create=True))] == [1, 20, 21, 22]


def test_a_damaged_object_is_told_and_the_others_go_on(
    cloud: Cloud, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be anybody's: its first line is not believed."""
    first, second = cloud.on("first", create=True), cloud.on("second", create=True)
    begun(first)
    for name, content in {
        "torn": b'[["record.jsonl", 0, 10]]\nabc',
        "climbs": b'[["../x", 0, 3]]\nabc',
        "words": b"no JSON\n",
    }.items():
        Bucket(URL, cloud.objects).put_new(f"{FOLDER}/{name}/000001-000001-whole", content)
    assert len(lines_on(second)) == 1
    assert sorted(path.name for path in second.experiments.iterdir()) == ["one"]
    assert len([line for line in caplog.messages if "cannot be read" in line]) == 3


STEPS = st.lists(st.sampled_from(["durable", "quick", "anew", "away", "lost answer"]), max_size=14)


@pytest.mark.slow
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=STEPS)
def test_the_bucket_holds_every_durable_entry_after_any_failure(
    steps: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Requests fail before and after they are carried out; a caller that tries again succeeds."""
    bucket = Failing(URL, MemoryStore())
    first, second = (
        SharedDirectory(tmp_path_factory.mktemp(name), bucket=bucket) for name in ("a", "b")
    )
    first.experiments.mkdir()
    second.experiments.mkdir()
    journal = begun(first)
    number, durable = 1, 1
    for step in steps:
        number += 1
        if step == "anew":
            journal.begin_anew(number, float(number), CHECKPOINT)
        else:
            journal.append(number, float(number), DROPPED)
        Failing.away, Failing.makes_them = step in {"away", "lost answer"}, step == "lost answer"
        try:
            journal.commit(durably=step != "quick")
        except SharedDirectoryError:
            Failing.away = False
            journal.commit()
        durable = durable if step == "quick" else number
    assert [line.order for line in lines_on(second)][-1] == durable
    here = read_journal(first.experiment_path("one"))
    assert lines_on(second) == [line for line in here if line.order <= durable]
