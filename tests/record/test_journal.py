"""A journal on the disk: a reader gets every committed line, even if later ones are damaged."""

import errno
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downpour.base.errors import FileCorrupt, SharedDirectoryError
from downpour.base.states import Evaluation, ExperimentState, Failure, FailureKind, TaskState
from downpour.base.values import AttemptId, PublishedFile, Update
from downpour.core.node.journal import Line
from downpour.core.scheduler import Checkpoint, Journaled, Observed, TakenUp
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.core.scheduler.replay import DurableTask
from downpour.core.scheduler.round import TaskKey
from downpour.core.stragglers.base import PendingTask
from downpour.record.journal import KINDS, Journal, lines_from, read_journal, segments
from tests.specs import plain_spec

FILE = PublishedFile(name="update-1", size_bytes=7, checksum="0" * 32)
ATTEMPT = AttemptId(experiment="one", round=0, shard=1, attempt=2)
UPDATE = Update(
    file=FILE,
    samples=3,
    steps=1,
    loss=0.1 + 0.2,
    load_seconds=0.0,
    train_seconds=math.inf,
    publish_seconds=1e-300,
    optimizer_state=FILE,
)
TASK = DurableTask(
    state=TaskState.PUBLISHED,
    offer=PendingTask(shard=0, samples=1, failed_on=("ann",), saved=0.25),
    samples=3,
    share=0.5,
    assigned_to=["ann", "bob"],
    began_at=[0.0, 0.25],
    failed=[Failure(FailureKind.LOST, "silent")],
    furthered={0},
    excused=1,
    first_to_count=1,
    held_by={"cid": ATTEMPT},
    snapshot=None,
    base=FILE,
    base_version=2,
    worker="bob",
    attempt=ATTEMPT,
    update=UPDATE,
    assigned_at_seconds=[0.5, 0.1 + 0.2],
    completion_seconds=1.5,
    startup_seconds=0.5,
)
CHECKPOINT = Checkpoint(
    experiment="one",
    version=5,
    rounds_done=3,
    tasks=[[TASK], []],
    arrived=[TaskKey(3, 0)],
    arrived_at_seconds=[1.8],
    models=[FILE, FILE],
    outer=None,
    optimizer_states={0: FILE},
    steps={},
    own={1: FILE},
    evaluating={2: FILE},
    evaluated_versions={3},
    evaluated_round=1,
    last_evaluation=None,
    best=on.Best(round=1, value=0.1, model=FILE),
)

ONE_OF_EACH: tuple[Journaled, ...] = (
    on.ExperimentSubmitted(
        at_seconds=0.5, experiment="one", spec=plain_spec(shards=2, split="class")
    ),
    on.Prepared(at_seconds=1.0, experiment="one", dataset="d", shard_samples=(3, 4), model=FILE),
    out.Assigned(
        cause=1, worker="ann", attempt=ATTEMPT, model=FILE, optimizer_state=None, reason="idle – so"
    ),
    out.Accepted(cause=2, worker="ann", attempt=ATTEMPT, update=UPDATE, completion_seconds=1.5),
    out.GivenUp(
        cause=3, worker="ann", attempt=ATTEMPT, failure=FailureKind.LOST, reason="two\nlines"
    ),
    on.Aggregated(at_seconds=2.0, experiment="one", round=0, model=FILE),
    on.Evaluated(
        at_seconds=3.0,
        experiment="one",
        round=0,
        evaluation=Evaluation(
            loss=1 / 3,
            metrics={"psnr": 0.5, "accuracy": 0.25},
            class_accuracy=(0.5, 1.0),
            samples=4,
            seconds=0.1,
        ),
    ),
    on.ModelPublished(at_seconds=4.0, experiment="one", model=FILE),
    out.Concluded(
        cause=9, experiment="one", ending=ExperimentState.FINISHED, reason="done", model=FILE
    ),
    Observed(experiment="one", line={"kind": "cancelled", "reason": "so", "loss": 1 / 3}),
    out.Dismissed(cause=10, worker="ann", reason="lunch"),
    TakenUp(),
    CHECKPOINT,
)


def written(folder: Path, *batches: tuple[Journaled, ...], term: int = 1) -> list[Line]:
    """Commit batches of entries one after the other; returns what should be read."""
    journal = Journal(folder, term)
    lines: list[Line] = []
    for batch in batches:
        for entry in batch:
            number = len(lines) + 1
            journal.append(2 * number, number / 2, entry)
            lines.append(Line(number=number, order=2 * number, at_seconds=number / 2, entry=entry))
        journal.commit()
    journal.close()
    return lines


def test_every_kind_of_entry_comes_back_as_it_was(tmp_path: Path) -> None:
    """To the last bit of a float, in order."""
    lines = written(tmp_path, ONE_OF_EACH)
    assert read_journal(tmp_path) == lines


def test_the_words_on_the_disk_stay_as_they_are() -> None:
    """An experiment that was begun with a released version goes on."""
    assert set(KINDS) >= {
        *("submitted", "prepared", "assigned", "accepted", "saved", "dropped", "resized"),
        *("given-up", "aggregated", "evaluated", "published", "concluded", "checkpoint"),
        *("hand-over-asked", "forecast-recorded", "contradicted", "improved"),
        *("worker-requested", "dismissed", "observed", "taken-up"),
    }


def test_a_loss_that_is_no_number_comes_back_as_such(tmp_path: Path) -> None:
    """JSON has no word for it; the journal has."""
    update = replace(UPDATE, loss=math.nan)
    accept = out.Accepted(
        cause=1, worker="ann", attempt=ATTEMPT, update=update, completion_seconds=1.0
    )
    written(tmp_path, (accept,))
    [line] = read_journal(tmp_path)
    assert isinstance(line.entry, out.Accepted)
    assert math.isnan(line.entry.update.loss)


def test_an_experiment_without_a_journal_has_no_entries(tmp_path: Path) -> None:
    """And other files do not matter."""
    (tmp_path / "journal-of-mine.jsonl").write_text("hello\n")
    assert read_journal(tmp_path) == []


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 4000))
def test_a_crash_at_any_byte_leaves_a_beginning(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    """What was written before it is there, and nothing else is."""
    folder = tmp_path_factory.mktemp("journal")
    lines = written(folder, *((entry,) for entry in ONE_OF_EACH))
    [segment] = segments(folder)
    os.truncate(segment, min(cut, segment.stat().st_size))
    found = read_journal(folder)
    assert found == lines[: len(found)]
    assert len(found) == segment.read_bytes().count(b"\n")


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_an_altered_byte_is_never_believed(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """The entry is left out at the end, and named where later ones follow it."""
    folder = tmp_path_factory.mktemp("journal")
    lines = written(folder, ONE_OF_EACH)
    [segment] = segments(folder)
    content = bytearray(segment.read_bytes())
    where = data.draw(st.integers(0, len(content) - 1))
    content[where] ^= data.draw(st.integers(1, 255))
    segment.write_bytes(content)
    try:
        found = read_journal(folder)
    except FileCorrupt:
        found = []
    assert found == lines[: len(found)]


def test_an_entry_that_is_missing_among_others_is_named(tmp_path: Path) -> None:
    """Nobody goes on from a story with a hole."""
    written(tmp_path, ONE_OF_EACH)
    [segment] = segments(tmp_path)
    whole = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(b"".join(whole[:3] + whole[4:]))
    with pytest.raises(FileCorrupt, match="journal: entry 4 is missing or altered"):
        read_journal(tmp_path)


def test_the_next_manager_goes_on_behind_what_a_crash_has_torn(tmp_path: Path) -> None:
    """Its own lines come in the torn one's place, in a segment of its own."""
    lines = written(tmp_path, ONE_OF_EACH[:3])
    [segment] = segments(tmp_path)
    os.truncate(segment, segment.stat().st_size - 5)
    journal = Journal(tmp_path, 2, read_journal(tmp_path))
    journal.append(1, 9.0, ONE_OF_EACH[3])
    journal.commit()
    found = read_journal(tmp_path)
    assert found[:2] == lines[:2]
    assert [line.entry for line in found[2:]] == [TakenUp(), ONE_OF_EACH[3]]


def test_a_manager_that_was_replaced_adds_nothing_behind_its_successor(tmp_path: Path) -> None:
    """Both went on from the second line; the one with the higher term says what happened."""
    earlier = Journal(tmp_path, 1)
    for number, entry in enumerate(ONE_OF_EACH[:2], 1):
        earlier.append(number, 1.0, entry)
    earlier.commit()
    later = Journal(tmp_path, 2, read_journal(tmp_path))
    for number in (3, 4, 5):
        earlier.append(number, 2.0, ONE_OF_EACH[2])
    earlier.commit()
    later.append(3, 9.0, ONE_OF_EACH[4])
    later.commit()
    entries = [line.entry for line in read_journal(tmp_path)]
    assert entries == [*ONE_OF_EACH[:2], TakenUp(), ONE_OF_EACH[4]]
    earlier.begin_anew(9, 9.0, CHECKPOINT)
    earlier.append(9, 9.0, ONE_OF_EACH[2])
    earlier.commit()
    assert [line.entry for line in read_journal(tmp_path)] == entries


def test_lines_are_durable_once_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer may have died before a sync, and the next one's lines must not outlive these."""
    journal = Journal(tmp_path, 1)
    journal.append(1, 1.0, ONE_OF_EACH[0])
    journal.commit(durably=False)
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_ino))
    read_journal(tmp_path)
    assert synced == [segment.stat().st_ino for segment in segments(tmp_path)]


def test_a_disk_that_was_full_gets_the_rest_when_it_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed commit is tried again in a new segment; nothing is there twice or missing."""
    journal = Journal(tmp_path, 1)
    journal.append(1, 1.0, ONE_OF_EACH[0])
    journal.commit()
    journal.append(1, 2.0, ONE_OF_EACH[1])

    def half(descriptor: int, content: bytes) -> int:
        """Take a part, then no more."""
        monkeypatch.setattr(os, "write", refuse)
        return real(descriptor, content[:20])

    def refuse(_descriptor: int, _content: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    real = os.write
    monkeypatch.setattr(os, "write", half)
    with pytest.raises(SharedDirectoryError, match=r"full"):
        journal.commit()
    monkeypatch.setattr(os, "write", real)
    journal.append(1, 3.0, ONE_OF_EACH[2])
    journal.commit()
    assert [line.entry for line in read_journal(tmp_path)] == list(ONE_OF_EACH[:3])
    assert len(segments(tmp_path)) == 2


@pytest.mark.parametrize(
    ("terms", "names"),
    [
        ((1, 1), ("journal-000001-9999.jsonl", "journal-000001-10000.jsonl")),
        ((999_999, 1_000_000), ("journal-999999-0001.jsonl", "journal-1000000-0001.jsonl")),
    ],
)
def test_numbers_that_outgrow_their_digits_are_read_in_order(
    tmp_path: Path, terms: tuple[int, int], names: tuple[str, str]
) -> None:
    """After 10,000 segments under one manager, and after a million managers."""
    written(tmp_path, ONE_OF_EACH[:1], term=terms[0])
    segments(tmp_path)[0].rename(tmp_path / names[0])
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    written(elsewhere, ONE_OF_EACH[:1], ONE_OF_EACH[3:4], term=terms[1])
    segments(elsewhere)[0].rename(tmp_path / names[1])
    assert [path.name for path in segments(tmp_path)] == list(names)
    assert [line.entry for line in read_journal(tmp_path)] == [ONE_OF_EACH[0], ONE_OF_EACH[3]]


def test_nothing_appended_is_nothing_written(tmp_path: Path) -> None:
    """A commit without entries leaves no file."""
    Journal(tmp_path, 1).commit()
    assert segments(tmp_path) == []


def test_replay_begins_at_a_checkpoint(tmp_path: Path) -> None:
    """Its line has submission and preparation; the lines before it stay, for people."""
    journal = Journal(tmp_path, 1)
    for order, entry in enumerate(ONE_OF_EACH[:6], start=1):
        journal.append(order, float(order), entry)
    journal.commit()
    former = {path: path.read_bytes() for path in segments(tmp_path)}
    journal.begin_anew(7, 7.0, CHECKPOINT)
    journal.append(8, 8.0, ONE_OF_EACH[2])
    journal.commit()
    assert {path: path.read_bytes() for path in former} == former
    found = read_journal(tmp_path)
    assert [line.entry for line in found] == [*ONE_OF_EACH[:2], CHECKPOINT, ONE_OF_EACH[2]]
    assert [line.order for line in found] == [1, 2, 7, 8]
    assert [line.number for line in found] == [1, 2, 6, 7]
    following = Journal(tmp_path, 2, found)
    following.begin_anew(9, 9.0, CHECKPOINT)
    following.commit()
    assert [line.entry for line in read_journal(tmp_path)] == [*ONE_OF_EACH[:2], CHECKPOINT]
    people = [line.entry for path in segments(tmp_path) for line in lines_from(path, 0)[0]]
    assert people == [*ONE_OF_EACH[:6], ONE_OF_EACH[2], TakenUp()]
    for path in former:  # not read any more, so a start takes as long with a longer story
        path.unlink()
        path.mkdir()
    assert [line.number for line in read_journal(tmp_path)] == [1, 2, 8]


def test_a_checkpoint_that_does_not_count_is_passed_by(tmp_path: Path) -> None:
    """One that was replaced made it behind its successor's first line."""
    earlier = Journal(tmp_path, 1, cluster="here")
    for order, entry in enumerate(ONE_OF_EACH[:4], start=1):
        earlier.append(order, float(order), entry)
    earlier.commit()
    later = Journal(tmp_path, 2, read_journal(tmp_path), cluster="here")
    later.commit()
    earlier.append(5, 5.0, ONE_OF_EACH[4])
    earlier.begin_anew(6, 6.0, CHECKPOINT)
    earlier.commit()
    found = read_journal(tmp_path)
    assert [line.entry for line in found] == [*ONE_OF_EACH[:4], TakenUp()]
    assert [line.cluster for line in found] == ["here", *[""] * 4]


def test_a_checkpoint_that_cannot_be_written_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is there when there is room again."""
    journal = Journal(tmp_path, 1)
    for order, entry in enumerate(ONE_OF_EACH[:6], start=1):
        journal.append(order, float(order), entry)
    journal.commit()
    journal.begin_anew(7, 7.0, CHECKPOINT)

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", refuse)
    with pytest.raises(SharedDirectoryError, match="full"):
        journal.commit()
    monkeypatch.undo()
    assert [line.entry for line in read_journal(tmp_path)] == list(ONE_OF_EACH[:6])
    journal.commit()
    assert [line.entry for line in read_journal(tmp_path)] == [*ONE_OF_EACH[:2], CHECKPOINT]
