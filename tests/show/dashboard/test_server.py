"""The page's server, and the process that it is."""

import gzip
import http.client
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.experiments.page_server import process
from downpour.experiments.page_server import server as server_module
from downpour.experiments.page_server.place import ResultsPlace
from downpour.experiments.page_server.viewers import Gzip, event
from downpour.host.paths import Credentials
from downpour.network.rpc.server import listen
from downpour.network.rpc.trust import OPEN
from downpour.record.journal import Journal
from downpour.record.record_lines import Dated, PreparedLine
from downpour.record.view import observed
from tests.show.dashboard.records import fields_of, large_record, texts
from tests.show.dashboard.served import Page, served
from tests.show.dashboard.viewer import Viewer

RECORDED = Path(__file__).parents[2] / "recorded"
LINES = list(texts(large_record(3, 2)))
# The view keeps back how a model was prepared until the core has it.
GROWING = [dated for dated in large_record(3, 2) if not isinstance(dated[1], PreparedLine)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an experiment that has ended."""
    (tmp_path / "ended").mkdir()
    (tmp_path / "ended" / "record.jsonl").write_text("".join(LINES))
    return tmp_path


@pytest.fixture
def journal(folder: Path) -> Journal:
    """The journal of another one, which grows."""
    (folder / "growing").mkdir()
    journal = Journal(folder / "growing", 1)
    appended(journal, GROWING[:9])
    return journal


@pytest.fixture
def page(folder: Path, journal: Journal) -> Iterator[Page]:
    """A page of that folder."""
    del journal
    with served(folder) as page:
        yield page


def appended(journal: Journal, lines: Sequence[Dated]) -> None:
    """Append to the growing journal."""
    for at, line in lines:
        journal.append(1, at, observed("growing", line))
    journal.commit(durably=False)


def frames(events: Iterator[tuple[str, Any]], upto: int) -> Viewer:
    """Read events until a line; all of them must be frames."""
    viewer = Viewer()
    for name, data in events:
        assert name == "frame"
        viewer.see(data)
        if viewer.seq >= upto:
            break
    return viewer


def test_a_stream_and_one_frame_tell_the_same(page: Page) -> None:
    """All of an experiment that has ended, for a viewer that knows nothing."""
    whole = Viewer()
    whole.see(page.ask("/api/experiments/ended/frame").json)
    with page.events("ended") as events:
        assert frames(events, len(LINES)).shown == whole.shown
    assert whole.experiment["state"] == "finished"
    assert len(whole.rows("attempts")) == 6
    assert page.ask("/api/experiments/ended/frame?after=9999").json["seq"] == len(LINES)


def test_what_is_appended_arrives_at_every_viewer(page: Page, journal: Journal) -> None:
    """One that was away gets what it has missed."""
    with page.events("growing") as one, page.events("growing") as other:
        before = frames(one, 9)
        frames(other, 9)
        appended(journal, GROWING[9:11])
        assert frames(one, 11).seq == 11
        name, data = next(other)
        while data["seq"] < 11:
            name, data = next(other)
        assert name == "frame"
    appended(journal, GROWING[11:])
    with page.events("growing", headers={"last-event-id": "9"}) as later:
        rest = frames(later, len(GROWING))
    assert before.rows_seen + rest.rows_seen < 3 * len(GROWING)
    assert len(before.rows("attempts")) + len(rest.rows("attempts")) == 6, "none twice"


def test_a_compressed_stream_is_one_gzip_file(page: Page) -> None:
    """Its chunks are compressed once for all viewers, and still fit together."""
    plain = page.ask("/api/experiments/ended/frame").body
    connection = page.connect()
    connection.request("GET", "/api/experiments/ended/events", headers={"accept-encoding": "gzip"})
    response = connection.getresponse()
    assert response.headers["content-encoding"] == "gzip"
    page.server.leave()
    read = response.read()
    connection.close()
    text = gzip.decompress(read).decode()
    first = json.loads(text.partition("data: ")[2].partition("\n")[0])
    assert {**first, "clock": 0} == {**json.loads(plain), "clock": 0}
    assert text.endswith(
        'event: over\ndata: {"text": "The server has stopped; the page no longer changes."}\n\n'
    )


@given(st.lists(st.text(max_size=2000), max_size=5))
def test_chunks_fit_together_whatever_is_in_them(told: list[str]) -> None:
    """And each can be read as soon as it is there."""
    stream, reader, seen = Gzip(), zlib.decompressobj(zlib.MAX_WBITS | 16), b""
    whole = b""
    for text in told:
        chunk = event("frame", json.dumps(text), 1)
        sent = stream.add(chunk)
        whole += sent
        seen += chunk.plain
        assert reader.decompress(sent) == chunk.plain
    if told:
        assert gzip.decompress(whole + stream.end()) == seen


def test_a_damaged_line_is_told_and_the_rest_is_shown(page: Page, folder: Path) -> None:
    """In a banner that names the line."""
    damaged = [*LINES[:9], "{ this is no line\n", *LINES[9:]]
    (folder / "ended" / "record.jsonl").write_text("".join(damaged))
    with page.events("ended") as events:
        told = dict(next(events) for _ in range(2))
    assert told["trouble"] == {"text": "line 10 is not a fact of an experiment; it is left out"}
    assert told["frame"]["seq"] == len(damaged)
    assert page.ask("/api/experiments/ended/frame").json["seq"] == len(damaged)


def test_a_folder_that_is_gone_for_a_while_is_told_and_then_all_is_fine(
    page: Page, folder: Path, journal: Journal
) -> None:
    """As where a file server is away; nothing is lost, and nothing comes twice."""
    with page.events("growing") as events:
        frames(events, 9)
        (folder / "growing").rename(folder / "away")
        name, told = next(events)
        assert (name, "growing" in told["text"]) == ("trouble", True)
        appended(journal, GROWING[9:10])
        (folder / "away").rename(folder / "growing")
        told = dict(next(events) for _ in range(2))
        assert told.keys() == {"fine", "frame"}
        assert told["frame"]["seq"] == 10


def test_viewers_are_told_when_the_server_ends(page: Page, journal: Journal) -> None:
    """After the last lines, which no viewer misses."""
    with page.events("growing") as events:
        frames(events, 9)
        appended(journal, GROWING[9:])
        page.server.leave()
        told = list(events)
    assert [name for name, _ in told][-1] == "over"
    assert max(data.get("seq", 0) for _, data in told) == len(GROWING)


def test_the_list_has_the_newest_first_in_pages(tmp_path: Path) -> None:
    """With state, rounds and the last measurement, though only ends of records are read."""
    with served(tmp_path) as page:
        nothing = page.ask("/api/experiments").json
        assert nothing == {"experiments": [], "studies": [], "login": False, "next": None}
        for number in range(103):
            (tmp_path / f"run-{number:03}").mkdir()
            kept = LINES if number % 2 else LINES[: 9 + number % 5]
            (tmp_path / f"run-{number:03}" / "record.jsonl").write_text("".join(kept))
        first = page.ask("/api/experiments").json
        rest = page.ask(f"/api/experiments?before={first['next']}").json
    names = [row["id"] for row in first["experiments"] + rest["experiments"]]
    assert sorted(names) == [f"run-{number:03}" for number in range(103)]
    assert (len(first["experiments"]), rest["next"]) == (100, None)
    ended = next(row for row in first["experiments"] if row["state"] == "finished")
    assert (ended["rounds_done"], ended["rounds"], ended["running"]) == (2, 2, False)
    assert ended["measure"] == {"words": "accuracy", "text": "55.00%"}


def test_the_history_of_a_task_is_told_in_words() -> None:
    """Who got it and why, what was foreseen, and how it ended; of one task alone."""
    with served(RECORDED / "handoff") as page:
        lines = page.ask("/api/experiments/handoff/tasks/1/3").json["lines"]
        assert page.ask("/api/experiments/handoff/tasks/9/9").json == {"lines": []}
    assert [(at, attempt) for at, _, attempt in lines] == [
        *((1.0, 0), (4.0, 0), (11.0, 0), (11.2, 0), (11.2, 0), (11.2, 1), (19.0, 1))
    ]
    words = "\n".join(text for _, text, _ in lines)
    assert "gave it to d: next shard in order" in words
    assert "hand over from d to a: d would take 29 s more" in words
    assert "gave it to a from step 25" in words


def test_classes_per_shard_are_told_where_the_record_has_them(folder: Path) -> None:
    """Older records have not, nor those of experiments without classes."""
    lines = fields_of(large_record(3, 1))
    prepared = next(line for line in lines if line["kind"] == "prepared")
    prepared["shard_classes"] = [[5, 0], [2, 3], [0, 1]]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "split").mkdir()
    (folder / "split" / "record.jsonl").write_text(text)
    with served(folder) as page:
        told = page.ask("/api/experiments/split/splits").json
        unknown = page.ask("/api/experiments/ended/splits")
        names = ("split", "ended")
        frames = [page.ask(f"/api/experiments/{name}/frame").json for name in names]
    assert told == {"classes": ["0", "1"], "shards": [[5, 0], [2, 3], [0, 1]]}
    assert (unknown.status, "does not list" in unknown.json["text"]) == (404, True)
    assert [frame["experiment"]["splits"] for frame in frames] == [True, False], "so a page asks"


@pytest.mark.parametrize(
    "path",
    ["nope", "..", "%2e%2e", "..%2fended", "ended%2f..", "%00", ".", "a:b", "ended:x", "%ff", "~"],
)
def test_no_id_leads_out_of_the_folder(page: Page, path: str) -> None:
    """Each is unknown, in one line."""
    answer = page.ask(f"/api/experiments/{path}/frame")
    assert answer.status == 404
    assert b"record" not in answer.body


@given(st.text(max_size=30))
def test_only_names_in_the_folder_are_found(name: str) -> None:
    """Whatever is asked for."""
    found = ResultsPlace.at(RECORDED).folder_of(name)
    assert found is None or found in {RECORDED / "handoff", RECORDED / "gestures"}


def test_names_from_records_are_text_for_the_page(folder: Path) -> None:
    """JSON that no browser takes for HTML, whatever a name says."""
    hostile = "<img src=x onerror=alert(1)></script>"
    lines = fields_of(large_record(3, 1))
    lines[0]["name"] = lines[1]["worker"] = hostile
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "ended" / "record.jsonl").write_text(text)
    with served(folder) as page:
        answer = page.ask("/api/experiments/ended/frame")
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.json["workers"][0][1] == answer.json["experiment"]["name"] == hostile


def test_a_bad_line_number_is_refused_in_one_line(page: Page) -> None:
    """So are a study and a route that are not there."""
    for after in ("-1", "x", "1e3", "9" * 40, "%D9%A3"):
        answer = page.ask(f"/api/experiments/ended/frame?after={after}")
        told = {"text": "after must be the number of a line."}
        assert (answer.status, answer.json) == (400, told)
    for task in ("9" * 5000 + "/1", "1/" + "9" * 5000, "1/x", "-1/1"):
        assert page.ask(f"/api/experiments/ended/tasks/{task}").status == 404
    for name in ("from", "to", "level", "after"):
        assert page.ask(f"/api/experiments/ended/logs?{name}={'9' * 5000}").status == 400
    assert page.ask("/api/studies/nope").json == {"text": "This folder has no such study."}
    assert page.ask("/api/nothing").status == 404


@pytest.mark.parametrize("number", ["9" * 5000, "1" + "0" * 400, "1e999", "NaN", "-Infinity"])
@pytest.mark.parametrize("field", ['"at": 1790000000.0', '"shards": 3'])
def test_a_number_that_cannot_be_told_costs_its_line(
    page: Page, folder: Path, field: str, number: str
) -> None:
    """The folder is open to others, too; the page shows the rest of the record."""
    first, *others = LINES
    assert field in first
    spoiled = first.replace(field, f"{field.partition(':')[0]}: {number}")
    (folder / "ended" / "record.jsonl").write_text("".join([spoiled, *others]))
    answer = page.ask("/api/experiments/ended/frame")
    assert answer.status == 200
    assert answer.json["seq"] == len(LINES)
    assert page.ask("/api/experiments").status == 200


def test_no_more_than_so_many_pages_are_followed(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next viewer is told so; when one leaves there is room again."""
    monkeypatch.setattr(server_module, "STREAMS_MAX", 1)
    with page.events("ended") as events:
        frames(events, len(LINES))
        refused = page.ask("/api/experiments/growing/events")
        assert (refused.status, "already open" in refused.json["text"]) == (503, True)
    # The server may take a moment to notice that the viewer has left.
    while (status := _status(page, "/api/experiments/growing/events")) == 503:
        pass
    assert status == 200


def _status(page: Page, path: str) -> int:
    """How a path is answered, whose answer may never end."""
    connection = page.connect()
    connection.request("GET", path)
    status = connection.getresponse().status
    connection.close()
    return status


def test_the_page_and_its_files_are_served_and_nothing_else(page: Page) -> None:
    """From this origin alone; a file that a browser has is not sent again."""
    answer = page.ask("/")
    assert answer.headers["content-type"].startswith("text/html")
    assert b"--series-1" in page.ask("/theme.css").body
    style = page.ask("/assets/page.css")
    assert style.status == 200
    again = page.ask("/assets/page.css", {"if-none-match": style.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    for path in ("/assets/../server.py", "/assets/%2e%2e/server.py", "/assets//etc/passwd"):
        assert page.ask(path).status == 404


@pytest.mark.slow
def test_a_page_is_there_while_the_block_runs() -> None:
    """A browser that comes before the process is ready waits for it; the user is told later."""
    listener, told = listen("127.0.0.1", 0, OPEN), Event()
    port = listener.getsockname()[1]
    with process.page_beside(str(RECORDED), listener, Credentials(), told.set):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=100)
        connection.request("GET", "/api/experiments")
        assert len(json.load(connection.getresponse())["experiments"]) == 4
        connection.close()
        assert told.wait(100)
    listen("127.0.0.1", port, OPEN).close()


@pytest.mark.slow
def test_ctrl_c_is_for_the_parent_alone() -> None:
    """A terminal sends it to its own session, also while the page still imports what it needs."""
    page = process.start_page(str(RECORDED), listen("127.0.0.1", 0, OPEN), Credentials())
    assert os.getsid(page.process.pid) == page.process.pid
    process.end_page(page)
    assert page.process.returncode is not None


def test_a_page_whose_folder_is_missing_ends_by_itself(capfd: pytest.CaptureFixture[str]) -> None:
    """With a line that says why; its parent goes on."""
    page = process.start_page("/nowhere", listen("127.0.0.1", 0, OPEN), Credentials())
    assert not process.is_served(page)
    assert page.process.wait(100) == 2
    process.end_page(page)
    said = capfd.readouterr().err
    assert said == "downpour: the page has ended: FOLDER = '/nowhere': no such folder\n"


def test_nobody_is_sent_to_a_page_that_a_library_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Uvicorn 0.46 does not know one of our settings: a line says so, and no traceback."""
    (tmp_path / "sitecustomize.py").write_text(
        "import uvicorn\nreal = uvicorn.Config.__init__\n"
        "def older(self, app, *, ssl_context_factory='', **known):\n"
        "    if ssl_context_factory != '': raise TypeError('unexpected ssl_context_factory')\n"
        "    real(self, app, **known)\n"
        "uvicorn.Config.__init__ = older\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    page = process.start_page(str(RECORDED), listen("127.0.0.1", 0, OPEN), Credentials())
    assert not process.is_served(page)
    assert page.process.wait(100) == 1
    process.end_page(page)
    reason = "internal error: TypeError: unexpected ssl_context_factory"
    assert capfd.readouterr().err == f"downpour: the page has ended: {reason}\n"


def test_a_request_survives_its_line() -> None:
    """The token goes through it, and no command line."""
    request = process.PageRequest(
        location="s3://a/b", host="::1", descriptor=7, credentials=Credentials(token="x" * 20)
    )
    assert process.REQUEST.validate_json(process.REQUEST.dump_json(request)) == request
