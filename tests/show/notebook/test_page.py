"""The live page of an experiment inside a notebook: a frame that reaches nothing else."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import downpour
from downpour.base.errors import SpecError
from downpour.record.result import NotebookPage
from tests.show.dashboard.browser.conftest import browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["browser"]

FOLDER = Path(__file__).parents[2] / "recorded" / "handoff"


def test_a_page_is_shown_in_a_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its scripts may run, but not as the notebook's; a file holds the same page."""
    page = NotebookPage("<!doctype html><p>\N{WHITE SMILING FACE}")
    html = page._repr_html_()
    assert html.startswith('<iframe sandbox="allow-scripts" ')
    assert "allow-same-origin" not in html
    source = html.partition("base64,")[2].partition('"')[0]
    assert base64.b64decode(source).decode() == page.html
    page.save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text("utf-8") == page.html
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match=r"path = 'nowhere/page\.html': no such folder"):
        page.save("nowhere/page.html")
    assert repr(page) == f"<NotebookPage {len(page.html)} characters>"


def test_a_result_without_a_folder_has_no_page() -> None:
    """One that came from a manager elsewhere."""
    lines = (FOLDER / "record.jsonl").read_text().splitlines()
    with pytest.raises(SpecError, match=r"page = '.*': needs the experiment's folder"):
        downpour.Result.from_lines(lines).page()


@pytest.mark.slow
def test_the_page_works_in_its_frame(browser: Browser, tmp_path: Path) -> None:
    """It shows the experiment, its links lead to its views, and it asks nobody for anything."""
    result = downpour.Result.read(FOLDER)
    cell = tmp_path / "cell.html"
    cell.write_text(f"<!doctype html>{result.page()._repr_html_()}")
    page = browser.new_page()
    asked: list[str] = []
    wrong: list[str] = []
    page.on("request", lambda request: asked.append(request.url[:7]))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(cell.as_uri())
    frame = page.frame_locator("iframe")
    frame.get_by_role("heading", name=result.name).first.wait_for()
    frame.get_by_role("link", name="All experiments").click()
    frame.get_by_role("link", name=result.experiment).first.click()
    frame.get_by_role("heading", name="Timeline").first.wait_for()
    page.close()
    assert set(asked) <= {"file://", "data:te"}
    assert wrong == []
