"""The timeline in a browser: bars on one canvas, for pointers, keys and readers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.show.dashboard.browser.conftest import Visit, shown, until
from tests.show.dashboard.browser.made_frames import MadeRun, made_run
from tests.show.dashboard.browser.played_server import Playbook, PlayedServer

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow


@pytest.fixture
def run(playbook: Playbook) -> MadeRun:
    """Play a run of five workers, one of which hands its work over, as the only experiment."""
    made = made_run(5, 6)
    playbook.frames = {"run": made.frames()}
    playbook.tasks = {"2/2": [[20.0, "assigned to worker-3: it was free", 0]]}
    return made


def place_of(page: Page, attempt: int) -> tuple[float, float]:
    """Return where the middle of an attempt's bar is in the window."""
    x, y = page.evaluate(
        """i => {
          const { timeline } = downpour.page, { begin, end, worker } = timeline.tables.attempts;
          timeline.canvas.scrollIntoView({ block: "center", behavior: "instant" });
          const box = timeline.canvas.getBoundingClientRect(), { view } = timeline;
          const row = timeline.rank[worker[i]] + 0.4;
          return [box.left + timeline.gutter + view.x((begin[i] + end[i]) / 2),
                  box.top + downpour.AXIS + view.y(row)];
        }""",
        attempt,
    )
    return x, y


def view_of(page: Page) -> dict[str, Any]:
    """Return what the timeline shows."""
    found: dict[str, Any] = page.evaluate(
        "(({from, to, top, rowHeight, follow}) => ({from, to, top, rowHeight, follow}))"
        "(downpour.page.timeline.view)"
    )
    return found


def moved_attempt(run: MadeRun) -> int:
    """Return the number of an attempt whose work went on elsewhere."""
    return next(int(row[0]) for row in run.rows["ends"] if row[2] == "moved")


def test_a_click_on_a_bar_opens_the_history_of_its_task(
    visit: Visit, server: PlayedServer, run: MadeRun
) -> None:
    """The panel names the task, all of its attempts and what the record says; Escape closes it."""
    page = shown(visit(server.address), run)
    [attempt] = [row for row in run.rows["attempts"] if row[2:5] == [2, 2, 0]]
    page.mouse.click(*place_of(page, attempt[0]))
    panel = page.locator("#task")
    panel.get_by_text("assigned to worker-3: it was free").wait_for()
    assert panel.locator("h2").inner_text() == "Round 2, shard 2"
    assert panel.locator(".attempt").count() == 2, "the hand-over has two attempts"
    assert page.url.endswith("#/experiments/run/tasks/2/2")
    page.keyboard.press("Escape")
    panel.wait_for(state="hidden")
    assert page.url.endswith("#/experiments/run")


def test_the_pointer_is_told_what_a_bar_is(
    visit: Visit, server: PlayedServer, run: MadeRun
) -> None:
    """One tooltip says worker, round, shard and outcome, and goes when the pointer does."""
    page = shown(visit(server.address), run)
    moved = moved_attempt(run)
    page.mouse.move(*place_of(page, moved))
    page.locator("#tip").wait_for()
    text = page.locator("#tip").inner_text()
    assert "worker-3, attempt 0" in text
    assert "went on elsewhere" in text
    page.mouse.move(5, 5)
    page.locator("#tip").wait_for(state="hidden")


def test_a_line_marks_when_somebody_disturbed_a_process(
    visit: Visit, server: PlayedServer, playbook: Playbook, run: MadeRun
) -> None:
    """It crosses all rows, also where no bar is, and the tooltip says what was done to whom."""
    said = "disturb worker-2: worker-2 is killed"
    playbook.frames["run"][0]["decisions"] += [[99, 30.0, "disturb", said, None]]
    page = shown(visit(server.address), run)
    place_of(page, 0)
    left, top, high = page.evaluate(
        """() => {
          const { timeline } = downpour.page, box = timeline.canvas.getBoundingClientRect();
          return [box.left + timeline.gutter + timeline.view.x(30), box.top, box.height];
        }"""
    )
    for down in (0.4, 0.9):
        page.mouse.move(left, top + down * high)
        page.locator("#tip").get_by_text(f"0:30.0 {said}").wait_for()
    page.mouse.move(left - 20, top + 0.4 * high)
    until(page, "(tip => tip.hidden || !tip.textContent.includes('disturb'))(tip)")
    page.locator("#legend").get_by_text("slowed or killed on purpose").wait_for()


def test_wheel_drag_and_buttons_move_the_view(
    visit: Visit, server: PlayedServer, run: MadeRun
) -> None:
    """The wheel zooms around the pointer, a drag moves, and "All" shows the whole run again."""
    page = shown(visit(server.address), run)
    whole = view_of(page)
    x, y = map(round, place_of(page, 10))
    left = page.locator("#bars").evaluate("canvas => canvas.getBoundingClientRect().left")
    under = page.evaluate("x => downpour.page.gestures._moment(x)", x - left)
    page.mouse.move(x, y)
    page.mouse.wheel(0, -300)
    until(
        page,
        "span => downpour.page.timeline.view.to - downpour.page.timeline.view.from < span",
        arg=0.6 * (whole["to"] - whole["from"]),
    )
    zoomed = view_of(page)
    assert page.evaluate("x => downpour.page.gestures._moment(x)", x - left) == pytest.approx(under)
    page.mouse.down()
    page.mouse.move(x - 100, y, steps=4)
    page.mouse.up()
    assert view_of(page)["from"] > zoomed["from"]
    assert page.locator("#task").is_hidden(), "a drag is no click"
    page.get_by_role("button", name="All", exact=True).click()
    assert view_of(page) == whole


def test_everything_can_be_done_with_keys_alone(
    visit: Visit, server: PlayedServer, run: MadeRun
) -> None:
    """Tab reaches the timeline; keys zoom, move, point at tasks, open one and come back."""
    page = shown(visit(server.address), run)
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "bars":
            break
    assert page.evaluate("document.activeElement.matches(':focus-visible')")
    whole = view_of(page)
    page.keyboard.press("+")
    page.keyboard.press("+")
    page.keyboard.press("ArrowLeft")
    zoomed = view_of(page)
    assert zoomed["to"] - zoomed["from"] < whole["to"] - whole["from"]
    assert not zoomed["follow"]
    page.keyboard.press("Shift+ArrowDown")
    page.keyboard.press("Shift+ArrowDown")
    until(page, "document.querySelector('#announce').textContent.includes('worker-2')")
    page.keyboard.press("Enter")
    page.locator("#task h2").wait_for()
    assert page.evaluate("document.activeElement.tagName") == "H2", "the focus goes to the panel"
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "bars", "and comes back"
    page.keyboard.press("0")
    assert view_of(page) == whole


def test_a_table_says_what_the_canvas_shows(
    visit: Visit, server: PlayedServer, run: MadeRun
) -> None:
    """Every attempt has a row, a page at a time, with a button that opens its task."""
    page = shown(visit(server.address), run)
    page.get_by_role("button", name="As a table").click()
    mirror, total = page.locator("#mirror"), len(run.rows["attempts"])
    seen: list[str] = []
    while True:
        seen += mirror.locator("tbody tr").all_inner_texts()
        older = mirror.get_by_role("button", name="Older")
        if older.is_disabled():
            break
        older.click()
    assert len(seen) == len(set(seen)) == total
    moved = sum(row[2] == "moved" for row in run.rows["ends"])
    assert sum("went on elsewhere" in text for text in seen) == moved > 0
    mirror.get_by_role("button", name="Open the history of round 1, shard 0").click()
    page.locator("#task h2").wait_for()
    assert page.locator("#task h2").inner_text() == "Round 1, shard 0"


def test_a_decision_leads_to_its_place_in_the_timeline(
    visit: Visit, server: PlayedServer, run: MadeRun
) -> None:
    """The newest decision comes first; a click zooms to its attempt and marks it."""
    page = shown(visit(server.address), run)
    page.locator(".decision").first.wait_for()
    decision = run.rows["decisions"][-1]
    first = page.locator(".decision").first
    assert str(decision[3]) in first.inner_text()
    first.click()
    timeline = "downpour.page.timeline"
    assert page.evaluate(f"{timeline}.cursor") == decision[4]
    shown_now = view_of(page)
    assert shown_now["from"] <= run.rows["attempts"][decision[4]][5] <= shown_now["to"]
    assert first.get_attribute("aria-current") == "true"


def test_a_replay_is_the_same_drawing_at_another_time(
    visit: Visit, server: PlayedServer, run: MadeRun
) -> None:
    """At a moment of the past, what came later is neither drawn nor counted; playing moves on."""
    page = shown(visit(server.address), run)
    page.get_by_role("button", name="As a table").click()
    slider = page.get_by_role("slider")
    slider.fill("300")
    until(page, "document.querySelector('.state').textContent.includes('replay')")
    now = page.evaluate("downpour.page.timeline.now")
    begun = sum(row[5] <= now for row in run.rows["attempts"])
    assert 0 < begun < len(run.rows["attempts"])
    page.get_by_text(f"of {begun} attempts").wait_for()
    measured = sum(row[2] <= now for row in run.rows["evaluations"])
    text = "Accuracy by class after round"
    assert f"{text} {measured} " in page.locator("#classes caption").inner_text()
    page.get_by_label("Speed of the replay").select_option("500×")
    page.get_by_role("button", name="Replay").click()
    until(page, "downpour.page.clock.replaying === false")
    assert page.evaluate("downpour.page.timeline.now") >= run.rows["versions"][-1][1]


def test_bars_grow_while_somebody_watches_and_rest_while_nobody_does(
    visit: Visit, server: PlayedServer
) -> None:
    """Of a running experiment new frames are drawn by themselves; in a hidden tab none is."""
    page = visit(f"{server.address}/#/experiments/now")
    drawn = "downpour.page.timeline.frames"
    until(page, f"window.downpour?.page?.timeline.frames > 3 && {drawn}")
    page.evaluate(
        """() => {
          Object.defineProperty(document, "hidden", { get: () => window.away });
          window.away = true;
          document.dispatchEvent(new Event("visibilitychange"));
        }"""
    )
    page.wait_for_timeout(200)  # a frame that was asked for before may still come
    before = page.evaluate(drawn)
    page.wait_for_timeout(1200)
    assert page.evaluate(drawn) == before
    page.evaluate("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")
    until(page, f"before => {drawn} > before + 1", arg=before)
