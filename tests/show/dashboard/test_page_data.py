"""The data of the page: a record, followed wherever it is, and copies that need nothing else."""

import asyncio
import base64
import hashlib
import json
import os
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from downpour.base.errors import FileCorrupt, FileMissing, SharedDirectoryError
from downpour.experiments.page_server import place
from downpour.experiments.page_server.feeds import RecordFeed
from downpour.files.store.shared_directory import RUN_LOCK_NAME, lock_file
from downpour.record.journal import Journal, read_journal, segments
from downpour.record.record import RecordReader, export_record, line_text, task_lines
from downpour.record.record_lines import (
    AssignedLine,
    AttemptFailedLine,
    CancelledLine,
    RecordLine,
    WorkerLeftLine,
)
from downpour.record.view import observed
from downpour.show.dashboard import page_data
from downpour.show.dashboard.model import RecordTables
from downpour.show.dashboard.page_data import NOT_A_LINE, RecordSource, static_page
from tests.files.objects.cloud import URL, Cloud
from tests.files.objects.test_mirror import DROPPED, begun
from tests.show.dashboard.records import write_large
from tests.show.dashboard.served import served
from tests.show.dashboard.viewer import Viewer

ASSIGNED = AssignedLine(round=0, shard=1, attempt=0, worker="a", reason="the only idle worker")
FAILED = AttemptFailedLine(round=0, shard=1, attempt=0, worker="a", failure="lost", reason="gone")
LEFT = WorkerLeftLine(worker="a", reason="no heartbeat for 10 s", lost=True)
AGAIN = AssignedLine(round=0, shard=1, attempt=1, worker="b", reason="the first was lost")


def logged(folder: Path, lines: Sequence[RecordLine], term: int = 1) -> Journal:
    """Journal lines, a second apart, as a manager of a term does."""
    journal = Journal(folder, term, read_journal(folder))
    for second, line in enumerate(lines):
        journal.append(1, float(second), observed("one", line))
    journal.commit(durably=False)
    return journal


def export(folder: Path) -> None:
    """Export the record and remove the journal, as a run does at its end."""
    export_record(folder, RecordReader(folder).all_lines())
    for segment in segments(folder):
        segment.unlink()


def read_all(source: RecordSource, count: int = 100) -> list[Any]:
    """What a source has gained."""
    found: list[Any] = []
    while gained := source.read(count):
        found += gained
    return found


def plain(*lines: RecordLine) -> list[Any]:
    """Lines, a second apart, as JSON has them."""
    return [json.loads(line_text(float(second), line)) for second, line in enumerate(lines)]


def as_json(lines: Sequence[Any]) -> list[Any]:
    """Lines as JSON has them."""
    return [json.loads(json.dumps(line)) for line in lines]


def test_a_journal_is_followed_into_the_term_of_the_next_manager(tmp_path: Path) -> None:
    """Which was not there when it was opened; what the former manager still writes is left out."""
    former = logged(tmp_path, [ASSIGNED])
    source = RecordSource(tmp_path)
    assert as_json(read_all(source)) == plain(ASSIGNED)
    assert read_all(source) == []
    logged(tmp_path, [FAILED, LEFT], term=2)
    former.append(1, 9.0, observed("one", AGAIN))
    former.commit(durably=False)
    assert as_json(read_all(source, count=1)) == plain(FAILED, LEFT)


def test_a_record_goes_on_where_its_journal_ended(tmp_path: Path) -> None:
    """A run exports its record and removes the journal: the lines keep their numbers."""
    journal = logged(tmp_path, [ASSIGNED, FAILED])
    source = RecordSource(tmp_path)
    assert len(read_all(source)) == 2
    journal.append(1, 2.0, observed("one", LEFT))
    journal.commit(durably=False)
    export(tmp_path)
    assert read_all(source) == plain(ASSIGNED, FAILED, LEFT)[2:]


def test_a_folder_without_a_record_may_get_one(tmp_path: Path) -> None:
    """As that of an experiment that waits for its turn."""
    source = RecordSource(tmp_path)
    with pytest.raises(FileMissing):
        source.read(1)
    with pytest.raises(SharedDirectoryError):
        RecordSource(tmp_path / "absent").read(1)
    logged(tmp_path, [ASSIGNED])
    assert len(read_all(source)) == 1


def test_a_damaged_journal_stays_damaged(tmp_path: Path) -> None:
    """Each look says so, and lines after the gap are not taken for the next ones."""
    logged(tmp_path, [ASSIGNED, FAILED, LEFT])
    (segment,) = segments(tmp_path)
    first, _, third = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(first + third)
    source = RecordSource(tmp_path)
    for _ in range(2):
        with pytest.raises(FileCorrupt, match="entry 2 is missing"):
            read_all(source)


@pytest.mark.parametrize("damaged", [b"{", b'{"at": 1}, {"at": 2}', b"[1]", b"\xff", b"[" * 5000])
def test_a_damaged_line_of_a_record_stands_alone(tmp_path: Path, damaged: bytes) -> None:
    """The others keep their numbers."""
    lines = [line_text(1.0, line).encode() for line in (ASSIGNED, FAILED)]
    (tmp_path / "record.jsonl").write_bytes(b"\n".join([lines[0], damaged, lines[1], b""]))
    first, second, third = read_all(RecordSource(tmp_path))
    assert (first["kind"], second, third["kind"]) == ("assigned", NOT_A_LINE, "attempt-failed")


def test_long_records_are_read_in_pieces(tmp_path: Path) -> None:
    """Also one with a line that is longer than a piece."""
    long = WorkerLeftLine(worker="a", reason="x" * 3_000_000, lost=False)
    lines: list[Any] = [ASSIGNED, long, FAILED] * 3
    export_record(tmp_path, [line_text(1.0, line) for line in lines])
    read = read_all(RecordSource(tmp_path), count=2)
    assert [len(line.get("reason", "")) for line in read] == [len(line.reason) for line in lines]
    other = tmp_path / "journaled"
    other.mkdir()
    logged(other, lines)
    assert as_json(read_all(RecordSource(other), count=2)) == plain(*lines)


@pytest.mark.parametrize("exported", [True, False])
def test_the_clock_of_a_record_begins_where_its_last_line_was_written(
    tmp_path: Path, *, exported: bool
) -> None:
    """Managers count from anywhere; a page needs to know when that was."""
    logged(tmp_path, [ASSIGNED, FAILED, LEFT])
    if exported:
        export(tmp_path)
    for path in tmp_path.iterdir():
        os.utime(path, (2_000_002.0, 2_000_002.0))
    source = RecordSource(tmp_path)
    read_all(source)
    assert source.clock()[1] == 2_000_000.0


def test_no_line_is_lost_where_a_journal_goes_right_after_it_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a run that has just ended: only its clock is not known then."""
    logged(tmp_path, [ASSIGNED, FAILED])
    clock = RecordSource.clock

    def gone(source: RecordSource) -> tuple[str, float]:
        """Look at the clock of a file that was there a moment ago."""
        export(tmp_path)
        (tmp_path / "record.jsonl").rename(tmp_path / "kept")
        try:
            return clock(source)
        finally:
            (tmp_path / "kept").rename(tmp_path / "record.jsonl")

    monkeypatch.setattr(RecordSource, "clock", gone)
    feed = RecordFeed(tmp_path)
    asyncio.run(feed.catch_up(60.0))
    assert (feed.model.line, feed.trouble) == (2, "")


def test_a_viewer_learns_that_the_manager_has_died(tmp_path: Path) -> None:
    """The lock of a run, or of the leading manager, is free again once its process has ended."""
    logged(tmp_path, [ASSIGNED])
    lock = lock_file(tmp_path / RUN_LOCK_NAME)

    def is_led() -> bool:
        feed = RecordFeed(tmp_path)
        asyncio.run(feed.catch_up(60.0))
        return bool(json.loads(feed.frame_text(0, feed.model.line))["led"])

    assert is_led()
    lock.release()
    assert not is_led()


@pytest.mark.parametrize("exported", [True, False])
def test_the_lines_of_a_task_are_found_without_the_others(
    tmp_path: Path, *, exported: bool
) -> None:
    """In the record and in its journal, once each, though a later segment repeats some."""
    other = AssignedLine(
        round=0, shard=11, attempt=0, worker="b", reason='"round": 0, "shard": 1, '
    )
    logged(tmp_path, [ASSIGNED, other, FAILED])
    logged(tmp_path, [LEFT, AGAIN, CancelledLine(reason="enough")], term=2)
    if exported:
        export(tmp_path)
    found = [line for _, line in task_lines(tmp_path, 0, 1)]
    assert found == [ASSIGNED, FAILED, AGAIN]


def test_a_record_and_its_journal_give_the_same_tables(tmp_path: Path) -> None:
    """Whichever of them is read."""
    logged(tmp_path, [ASSIGNED, FAILED, LEFT, AGAIN])
    tables = []
    for _ in range(2):
        model = RecordTables()
        for line in read_all(RecordSource(tmp_path)):
            model.take(line)
        tables.append(json.dumps(model.since(0, model.line)))
        export(tmp_path)
    assert tables[0] == tables[1]


RECORDED = Path(__file__).parents[2] / "recorded"

FOLDERS = [RECORDED / "handoff", RECORDED / "gestures"]


class Parsed(HTMLParser):
    """What a browser makes of a page: its scripts, its styles, its title and its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: dict[str, list[str]] = {"script": [], "style": [], "title": [], "data": []}
        self.links: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note where an element begins, and what it refers to."""
        given = dict(attrs)
        self.links += [given[name] or "" for name in ("src", "href", "action") if name in given]
        is_data = given.get("id") == "downpour-data"
        self._inside = "data" if is_data else tag
        if self._inside in self.texts:
            self.texts[self._inside].append("")

    def handle_endtag(self, tag: str) -> None:
        del tag
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside in self.texts:
            self.texts[self._inside][-1] += data


def data_of(text: str) -> Any:
    """The data inside of a page."""
    (found,) = Parsed(text).texts["data"]
    return json.loads(found)


def test_a_copy_has_what_the_server_would_send() -> None:
    """Frames, histories of tasks, and the names of the experiments."""
    data = data_of(static_page(FOLDERS, "two runs"))
    names = [(one["id"], one["name"]) for one in data["experiments"]]
    assert names == [("uneven-51c0", "uneven"), ("gestures-7f3a", "gestures")]
    first = data["experiments"][0]
    assert (first["state"], first["running"]) == ("finished", False)
    assert first["rounds_done"] == first["rounds"] > 0
    viewer = Viewer()
    for frame in data["frames"]["uneven-51c0"]:
        viewer.see(frame)
    assert len(viewer.rows("attempts")) == 14
    assert viewer.experiment["state"] == "finished"
    assert data["tasks"]["uneven-51c0"]["1/3"][0][1].startswith("the manager gave it to d")


def test_the_policy_allows_the_scripts_and_styles_inside_and_nothing_else() -> None:
    """By their hashes; nothing refers to another file."""
    text = static_page(FOLDERS, "two runs")
    page = Parsed(text)
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for kind in ("script", "style"):
        assert page.texts[kind]
        allowed = re.findall(rf"{kind}-src ([^;]+)", policy)[0].split()
        digests = (hashlib.sha256(one.encode()).digest() for one in page.texts[kind])
        assert allowed == [f"'sha256-{base64.b64encode(one).decode()}'" for one in digests]
    assert not [link for link in page.links if "//" in link or "assets" in link]


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    """Neither a name nor the title can end the script or add one."""
    hostile = "</script><script>alert(1)</script><!--<script>"
    file = write_large(tmp_path, 2, 1)
    plain = Parsed(static_page([tmp_path], "plain"))
    file.write_text(file.read_text().replace('"large"', json.dumps(hostile)))
    text = static_page([tmp_path], hostile)
    page = Parsed(text)
    assert page.texts["script"] == plain.texts["script"]
    assert page.texts["title"] == [hostile]
    assert data_of(text)["experiments"][0]["name"] == hostile


def test_a_copy_of_a_large_record_says_what_it_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Histories of tasks, which would be most of it."""
    monkeypatch.setattr(page_data, "HISTORY_LINES_MAX", 50)
    write_large(tmp_path, 4, 4)
    data = data_of(static_page([tmp_path, FOLDERS[1]], "large"))
    assert data["tasks"].keys() == {"gestures-7f3a"}
    assert "more than 50 lines: histories of tasks are left out" in data["left_out"]


def test_a_page_of_a_bucket_follows_what_the_manager_puts_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without a folder that both see; experiments that come later are listed as well."""
    monkeypatch.setattr(place, "LOOK_SECONDS", 0.0)
    cloud = Cloud(monkeypatch, tmp_path)
    manager = cloud.on("manager", create=True)
    with served(URL) as page:
        assert page.ask("/api/experiments").json["experiments"] == []
        journal = begun(manager)
        (row,) = page.ask("/api/experiments").json["experiments"]
        assert (row["id"], row["state"]) == ("one", "waiting")
        with page.events("one") as events:
            assert next(events)[1]["seq"] == 1
            journal.append(2, 1.0, DROPPED)
            journal.commit()
            name, frame = next(events)
            assert (name, frame["seq"]) == ("frame", 2)
            assert frame["decisions"][0][2:4] == ["drop", "close round 1 without shards 1: late"]
