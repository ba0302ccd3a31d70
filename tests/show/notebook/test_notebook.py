"""A notebook: what its user sees of a run, and the live page in a frame."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import downpour
from downpour.base.errors import SpecError
from downpour.record.result import NotebookPage
from tests.show.dashboard.browser.conftest import browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser

nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
pytest.importorskip("ipykernel", reason="ipykernel is not installed")

CELLS = {
    "train": """\
import downpour

told = []
result = downpour.run({"shards": 2, "epochs": 2}, workers=1, on_event=told.append)
""",
    "result": "result",
    "plot": "result.plot()",
    "timeline": "result.timeline()",
    "page": "result.page()",
    "events": "[event.kind for event in told]",
}

Outputs = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Outputs:
    """Execute the cells; an update of a display is among the outputs of the cell that made it."""
    folder = tmp_path_factory.mktemp("notebook")
    book = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, CELLS.values())])
    drawn: list[dict[str, Any]] = []

    class Client(nbclient.NotebookClient):  # type: ignore[misc, name-defined]
        """Keeps every drawing of a display, of which a notebook has the last one only."""

        def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
            """Take a message of the kernel."""
            if msg["msg_type"] in {"display_data", "update_display_data"}:
                drawn.append({**msg["content"], "output_type": "drawing"})
            return super().process_message(msg, cell, cell_index)

    Client(book, timeout=100, resources={"metadata": {"path": str(folder)}}).execute()
    told = {name: cell.outputs for name, cell in zip(CELLS, book.cells, strict=True)}
    return {**told, "drawn": drawn}


def html(outputs: Outputs, name: str) -> str:
    """Return the HTML of a cell's only result."""
    (shown,) = outputs[name]
    assert shown["output_type"] == "execute_result"
    return str(shown["data"]["text/html"])


@pytest.mark.slow
def test_progress_is_drawn_in_place(outputs: Outputs) -> None:
    """As HTML and as text, without widgets and without bars on standard error; none stay."""
    drawn = [one["data"] for one in outputs["drawn"] if "transient" in one]
    assert all({"text/html", "text/plain"} <= set(one) for one in drawn)
    text = "".join(str(one["text/plain"]) for one in drawn)
    assert "shards of round" in text
    assert not [one for one in outputs["train"] if one["output_type"] == "stream"]
    (left,) = outputs["train"]
    assert left["data"]["text/plain"].strip() == ""


@pytest.mark.slow
def test_a_result_is_a_table(outputs: Outputs) -> None:
    """Of its epochs, as the terminal shows it."""
    assert "accuracy" in html(outputs, "result")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plot", "timeline"])
def test_figures_are_images_without_pyplot(outputs: Outputs, name: str) -> None:
    """The cell's result alone shows them."""
    assert html(outputs, name).startswith('<img alt="figure"')


@pytest.mark.slow
def test_the_page_is_in_a_frame(outputs: Outputs) -> None:
    """With the experiment inside."""
    assert html(outputs, "page").startswith('<iframe sandbox="allow-scripts"')


@pytest.mark.slow
def test_callbacks_have_been_called_when_a_run_returns(outputs: Outputs) -> None:
    """From the submission to the end."""
    (shown,) = outputs["events"]
    assert shown["data"]["text/plain"] == "['submitted', 'worker-joined', 'finished']"


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
