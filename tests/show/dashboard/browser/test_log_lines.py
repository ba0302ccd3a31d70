"""The logs on the page, from the files of the processes to elements that hold text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from downpour.files.log_places import FOLDER
from downpour.show.dashboard.page_data import static_page
from tests.show.dashboard.browser.conftest import Visit, until
from tests.show.dashboard.kept_logs import EXPERIMENT, logged, recorded_at
from tests.show.dashboard.served import served

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow

HOSTILE = "<img src=x onerror=\"document.title='caught'\"><b>bold</b>"
TRACE = "\n".join(
    ["Traceback (most recent call last):", *["  in forward"] * 60, "OSError: no luck"]
)
NO_SCROLL = "document.documentElement.scrollWidth <= window.innerWidth"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A shared directory with an experiment, whose worker d failed once."""
    recorded_at(tmp_path)
    logged(tmp_path, "manages", at=0.5, name="manager")
    logged(tmp_path, f"reading {HOSTILE}", at=2.0, source="stdout")
    logged(tmp_path, "shard 3 failed", at=11.0, level="error", trace=TRACE)
    return tmp_path


@pytest.fixture
def address(root: Path) -> Iterator[str]:
    """The address of its page."""
    with served(root) as page:
        yield f"http://127.0.0.1:{page.port}/#/experiments/{EXPERIMENT}"


@pytest.fixture
def growing(root: Path) -> Path:
    """The same, while the experiment still runs."""
    record = root / "experiments" / EXPERIMENT / "record.jsonl"
    lines = record.read_text().splitlines(keepends=True)
    record.write_text("".join(lines[:-1]))
    return root


def opened(page: Page) -> Page:
    """Open the logs, by keys alone."""
    summary = page.locator("#logs summary")
    summary.wait_for()
    summary.focus()
    page.keyboard.press("Enter")
    return page


def texts(page: Page) -> list[str]:
    """The texts on show."""
    return page.locator("#logs .said").all_inner_texts()


def test_logs_are_read_when_somebody_opens_them(visit: Visit, address: str) -> None:
    """And not before: a page that nobody opens them on asks for none."""
    page = visit(address)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.reload()
    page.locator("#logs summary").wait_for()
    page.locator("#workers tbody th").first.wait_for()
    assert not any("/logs?" in url for url in asked)
    opened(page).locator("#logs pre").wait_for()
    assert texts(page) == ["manages", f"reading {HOSTILE}", "shard 3 failed"]
    assert page.locator("#logs .label").all_inner_texts() == ["info", "stdout", "error"]
    assert page.locator("#logs pre").inner_text() == TRACE
    assert page.locator("#logs img, #logs b").count() == 0
    assert "caught" not in page.title()


def test_lines_are_chosen_by_process_and_level(visit: Visit, address: str) -> None:
    """And every process that said something can be chosen."""
    page = opened(visit(address))
    page.locator("#logs pre").wait_for()
    page.get_by_label("Process").select_option("manager")
    until(page, "document.querySelectorAll('#logs .said').length === 1")
    assert texts(page) == ["manages"]
    page.get_by_label("Process").select_option("all processes")
    page.get_by_label("Level").select_option("warnings and errors")
    page.locator("#logs pre").wait_for()
    assert texts(page) == ["shard 3 failed"]
    page.get_by_label("Process").select_option("manager")
    page.get_by_text("There are no such lines.").wait_for()


def test_open_logs_follow_the_run(visit: Visit, growing: Path) -> None:
    """What a process says appears below the rest, once; the reader who has scrolled up stays."""
    with served(growing) as served_page:
        page = visit(f"http://127.0.0.1:{served_page.port}/#/experiments/{EXPERIMENT}")
        opened(page).locator("#logs pre").wait_for()
        frame = page.locator("#logs .scroll")
        until(page, "(box => box.scrollTop + box.clientHeight > box.scrollHeight - 8)"
              "(document.querySelector('#logs .scroll'))")  # fmt: skip
        logged(growing, "second", at=12.0)
        page.get_by_text("second", exact=True).wait_for()
        frame.evaluate("box => { box.scrollTop = 0; }")
        logged(growing, "third", at=13.0)
        page.get_by_text("third", exact=True).wait_for()
        assert frame.evaluate("box => box.scrollTop") == 0
        assert texts(page)[-2:] == ["second", "third"]


def test_closed_logs_ask_for_nothing(visit: Visit, growing: Path) -> None:
    """However long the page stays open."""
    with served(growing) as served_page:
        address = f"http://127.0.0.1:{served_page.port}/#/experiments/{EXPERIMENT}"
        page = opened(visit(address, own_clock=True))
        page.locator("#logs pre").wait_for()
        page.keyboard.press("Enter")
        until(page, "!document.querySelector('#logs details').open")
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.clock.run_for(10_000)
        assert not any("/logs?" in url for url in asked)


def test_a_task_leads_to_what_its_worker_said_meanwhile(visit: Visit, address: str) -> None:
    """The lines of its seconds, which one button widens to all times."""
    page = visit(f"{address}/tasks/1/3")
    page.get_by_role("button", name="Logs of these seconds").first.click()
    page.locator("#logs pre").wait_for()
    assert texts(page) == [f"reading {HOSTILE}", "shard 3 failed"]
    assert page.get_by_label("Process").input_value() == "d"
    page.get_by_role("button", name="Logs of these seconds").last.click()
    page.get_by_text("There are no such lines.").wait_for()
    page.get_by_role("button", name="Show all times").click()
    page.get_by_label("Process").select_option("all processes")
    page.get_by_text("manages").wait_for()


def test_a_phone_shows_whole_tracebacks_without_scrolling_sideways(
    visit: Visit, root: Path, address: str
) -> None:
    """At 390 pixels, with a line that has no place to break."""
    logged(root, "x" * 3000, at=12.0, trace="y" * 3000, name="d" * 60)
    page = visit(address, width=390, has_touch=True, is_mobile=True)
    page.locator("#logs summary").tap()
    page.get_by_text("x" * 3000).wait_for()
    assert page.evaluate(NO_SCROLL)
    inner = "box => box.scrollWidth <= box.clientWidth"
    assert page.locator("#logs .scroll").evaluate(inner)


def test_without_logs_there_is_no_such_part(visit: Visit, root: Path, tmp_path: Path) -> None:
    """Neither where no process has kept any, nor in a copy that needs no server."""
    folder = root / "experiments" / EXPERIMENT
    file = tmp_path / "copy.html"
    file.write_text(static_page([folder], "copied"))
    page = visit(file.as_uri())
    until(page, "window.downpour?.page?.timeline.frames > 0")
    assert page.locator("#logs").is_hidden()
    for piece in (root / FOLDER).iterdir():
        piece.unlink()
    with served(root) as served_page:
        page = visit(f"http://127.0.0.1:{served_page.port}/#/experiments/{EXPERIMENT}")
        until(page, "window.downpour?.page?.timeline.frames > 0")
        assert page.locator("#logs").is_hidden()
