"""The page against the real server and in its static copy: both tell what the record says."""

import json
import random
import re
import shutil
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from downpour.experiments.page_server.server import PageServer, serve
from downpour.network.rpc.trust import Trust
from downpour.record.journal import Journal
from downpour.record.record_lines import DisturbedLine, RecordLine
from downpour.record.view import observed
from downpour.show.dashboard.page_data import PAGE, static_page
from tests.show.dashboard.browser.conftest import Visit, until
from tests.show.dashboard.records import large_record
from tests.show.dashboard.served import served

pytestmark = pytest.mark.slow

ROWS_SEEN = """() => {
  window.seen = {};
  const look = () => {
    for (const { textContent } of document.querySelectorAll("#why-list .said")) {
      window.seen[textContent.match(/process-\\d+/)] ??= Date.now() / 1000;
    }
  };
  const list = document.querySelector("#why-list");
  new MutationObserver(look).observe(list, { childList: true, subtree: true });
}"""
"""Notes when each decision became an element, by the process it names."""
RECORDED = Path(__file__).parents[3] / "recorded"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a recorded experiment, whose slow shard moved and was copied."""
    shutil.copytree(RECORDED / "handoff", tmp_path / "handoff")
    return tmp_path


@pytest.fixture
def address(folder: Path) -> Iterator[str]:
    """Serve the folder from a thread."""
    listener = socket.create_server(("127.0.0.1", 0))
    started: list[PageServer] = []
    thread = threading.Thread(
        target=serve, args=(str(folder), listener, Trust(), "127.0.0.1", started.append)
    )
    thread.start()
    host, port = listener.getsockname()
    yield f"http://{host}:{port}"
    started[0].leave()
    thread.join()


def assigned(folder: Path) -> int:
    """Count the attempts that a record tells of."""
    lines = map(json.loads, (folder / "record.jsonl").read_text().splitlines())
    return sum(line["kind"] == "assigned" for line in lines)


def test_a_recorded_run_is_shown_with_its_tasks(visit: Visit, address: str, folder: Path) -> None:
    """Every attempt of the record is in the page's tables, and a task's history is in words."""
    page = visit(f"{address}/#/experiments/handoff/tasks/1/3")
    count = assigned(folder / "handoff")
    until(page, "count => window.downpour?.page?.tables.attempts.count === count", count)
    page.locator("#task .lines li").first.wait_for()
    assert page.locator("#task .attempt").count() == 2
    assert "hand" in page.locator("#task .lines").inner_text()
    assert page.locator(".decision", has_text="hand over from d to a").count() == 1


def test_a_page_asks_only_for_what_is_there(visit: Visit, address: str) -> None:
    """A record that does not say which classes a shard has leaves no error in the browser's log."""
    page = visit(f"{address}/#/experiments/handoff")
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.reload()
    page.locator("#workers tbody th").first.wait_for()
    until(page, "downpour.page.timeline.frames > 0")
    assert page.evaluate("fetch('/api/experiments').then(answer => answer.status)") == 200
    assert said == []


def test_milliseconds_from_a_line_in_the_journal_to_its_row(visit: Visit, folder: Path) -> None:
    """A manager's line is a row of the page within two seconds; the figures are printed."""
    (folder / "growing").mkdir()
    journal = Journal(folder / "growing", 1, [])
    draw = random.Random(1)
    start = time.time()

    def write(line: RecordLine) -> None:
        journal.append(1, time.time() - start, observed("growing", line))
        journal.commit(durably=False)

    for _, line in islice(large_record(4, 1), 5):
        write(line)
    taken: list[float] = []
    with served(folder) as served_page:
        page = visit(f"http://127.0.0.1:{served_page.port}/#/experiments/growing")
        page.locator("#workers tbody th").first.wait_for()
        page.evaluate(ROWS_SEEN)
        for number in range(20):
            page.wait_for_timeout(draw.uniform(0, 500))  # in any phase of the server's ticks
            written = time.time()
            write(DisturbedLine(who=f"process-{number}", what="is killed"))
            until(page, "name => name in window.seen", f"process-{number}", seconds=2)
            taken.append(page.evaluate("name => window.seen[name]", f"process-{number}") - written)
    middle, worst = (round(1000 * value) for value in (statistics.median(taken), max(taken)))
    print(f"from the journal to the page: median {middle} ms, at most {worst} ms")  # noqa: T201
    assert 0 < worst < 2000


def test_a_static_copy_needs_no_server(visit: Visit, folder: Path, tmp_path: Path) -> None:
    """One file shows the run, its histories and its replay, and its policy lets nothing else in."""
    file = tmp_path / "copy.html"
    file.write_text(static_page([folder / "handoff"], "<b>copied</b>"))
    page = visit(file.as_uri())
    until(
        page,
        "count => window.downpour?.page?.tables.attempts.count === count",
        assigned(folder / "handoff"),
    )
    until(page, "downpour.page.timeline.frames > 0")
    page.evaluate("downpour.page._openAttempt(0)")
    page.locator("#task .lines li").first.wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("link", name="All experiments").click()
    assert page.locator("#history a .name").inner_text().startswith("uneven")
    page.go_back()
    page.get_by_role("button", name="Replay").click()
    until(page, "downpour.page.clock.replaying")
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == "rgb(253, 253, 252)", "the styles are inside"


def test_every_script_of_the_page_is_loaded_and_every_file_is_used() -> None:
    """index.html names each file of the page once, and the licence lies beside the library."""
    named = re.findall(r'(?:src|href)="/assets/([^"]+)"', (PAGE / "index.html").read_text())
    there = {str(path.relative_to(PAGE)) for path in PAGE.rglob("*") if path.is_file()}
    assert len(named) == len(set(named))
    assert set(named) | {"index.html", "uplot/LICENSE"} == there
