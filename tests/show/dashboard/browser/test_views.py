"""The page in a browser: its views, and that it is accessible."""

from typing import Any

import pytest

from tests.docs.audits import seen_by_axe, seen_by_vnu
from tests.docs.pages import ROOT
from tests.show.dashboard.browser.conftest import Visit, shown, until
from tests.show.dashboard.browser.made_frames import made_run
from tests.show.dashboard.browser.played_server import Playbook, PlayedServer

pytestmark = pytest.mark.slow

HOSTILE = "<img src=x onerror=\"document.title='caught'\"><b>bold</b>"
NO_SCROLL = "document.documentElement.scrollWidth <= window.innerWidth"


def test_without_a_name_the_page_opens_the_experiment_that_runs(
    visit: Visit, server: PlayedServer
) -> None:
    """Who opens the bare address wants to see what goes on now."""
    page = visit(server.address)
    page.wait_for_url("**/#/experiments/now")
    page.locator("#now").get_by_text("● running").wait_for()


def test_an_empty_folder_says_what_will_come(
    visit: Visit, server: PlayedServer, playbook: Playbook
) -> None:
    """A page without experiments is no blank page."""
    playbook.frames.clear()
    page = visit(server.address)
    page.get_by_text("There is no experiment in this folder yet").wait_for()


def test_the_list_leads_to_experiments_and_studies_to_their_runs(
    visit: Visit, server: PlayedServer, playbook: Playbook
) -> None:
    """Each row is a link: from the list to an experiment, from a study's table to its run."""
    playbook.studies["modes"] = {
        "name": "modes", "columns": ["run", "accuracy"], "rows": [["first", "91 %"]],
        "runs": ["then"],
    }  # fmt: skip
    page = visit(f"{server.address}/#/history")
    page.get_by_role("link", name="five machines").click()
    page.get_by_role("heading", name="five machines").wait_for()
    page.get_by_role("link", name="All experiments").click()
    page.get_by_role("link", name="modes").click()
    page.get_by_role("link", name="first").click()
    page.wait_for_url("**/#/experiments/then")


def test_a_thousand_workers_are_few_elements(
    visit: Visit, server: PlayedServer, playbook: Playbook
) -> None:
    """Only the rows in sight are elements; filter, sort and scrolling reach all others."""
    made = made_run(1000, 2)
    playbook.frames = {"run": made.frames()}
    page = shown(visit(server.address), made)
    rows = page.locator("#workers tbody th")
    rows.first.wait_for()
    assert rows.count() < 40
    assert rows.first.inner_text() == "worker-1"
    page.get_by_role("button", name="Worker", exact=True).click()
    until(page, "document.querySelector('#workers tbody th').textContent === 'worker-1000'")
    page.locator("#workers .scroll").evaluate("element => { element.scrollTop = 1e6; }")
    page.locator("#workers tbody th", has_text="worker-1").last.wait_for()
    page.get_by_label("Filter workers").fill("worker-77")
    page.get_by_text("11 of 1000").wait_for()
    assert rows.count() == 11
    assert page.evaluate("document.querySelectorAll('*').length") < 1200


def test_curves_by_epoch_second_and_byte_and_of_two_experiments(
    visit: Visit, server: PlayedServer
) -> None:
    """A switch changes the axis; another experiment's curves lie over this one's."""
    page = visit(f"{server.address}/#/experiments/then")
    charts = "[...downpour.page.results.charts.values()].map(chart => chart.plot)"
    until(page, f"{charts}.length === 2 && {charts}.every(Boolean)")
    assert page.evaluate(f"{charts}[0].data[0]") == list(range(1, 10))
    page.get_by_role("radio", name="byte").check()
    assert page.evaluate(f"{charts}[0].data[0][1]") == 8_000_000
    page.get_by_role("radio", name="second").check()
    assert page.evaluate(f"{charts}[0].data[0][0]") > 1
    page.get_by_label("compare with").select_option("now")
    until(page, f"{charts}[0].series.length === 3")
    assert "digits by class" in page.evaluate(f"{charts}[0].series[2].label")


def test_classes_of_shards_are_a_table(
    visit: Visit, server: PlayedServer, playbook: Playbook
) -> None:
    """Each shard has a row, and a cell that holds more is darker."""
    playbook.splits["then"] = {"classes": ["cat", "dog"], "shards": [[90, 0], [10, 70]]}
    page = visit(f"{server.address}/#/experiments/then")
    page.get_by_role("columnheader", name="dog").wait_for()
    cells = page.locator("#splits .cell")
    assert cells.all_inner_texts() == ["90", "0", "10", "70"]
    dark = [cell.evaluate("cell => getComputedStyle(cell).backgroundColor") for cell in cells.all()]
    assert len(set(dark)) == 4


@pytest.mark.parametrize("hash_", ["history", "experiments/run", "experiments/run/tasks/2/1"])
def test_names_from_a_record_are_text(
    visit: Visit, server: PlayedServer, playbook: Playbook, hash_: str
) -> None:
    """Names, reasons and words of a record that look like HTML are shown as they are."""
    made = made_run(
        5, 4, name=HOSTILE, names=[f"{HOSTILE}{place}" for place in range(5)], metrics_words=HOSTILE
    )
    frames = made.frames()
    frames[0]["experiment"] |= {
        "reason": HOSTILE,
        "warnings": [HOSTILE],
    }
    playbook.frames = {"run": frames}
    playbook.tasks = {"2/1": [[1.0, HOSTILE, 0]]}
    playbook.studies = {HOSTILE: {"name": HOSTILE, "columns": [HOSTILE], "rows": [], "runs": []}}
    playbook.splits = {"run": {"classes": [HOSTILE], "shards": [[1]]}}
    page = visit(f"{server.address}/#/{hash_}")
    page.get_by_text("<b>bold</b>").first.wait_for()
    if hash_ != "history":
        shown(page, made)
        page.mouse.move(600, 420)
    page.wait_for_timeout(300)
    assert page.locator("img, b, script:not([src])").count() == 0
    assert "caught" not in page.title().replace(HOSTILE, "")


@pytest.mark.parametrize("hash_", ["history", "experiments/now", "experiments/then/tasks/2/2"])
def test_a_phone_never_scrolls_sideways(
    visit: Visit, server: PlayedServer, playbook: Playbook, hash_: str
) -> None:
    """At 390 pixels, with long names, the page is as wide as the window."""
    long = "a-name-without-any-place-to-break-" * 6
    frames = playbook.frames["now"]
    frames[0]["experiment"]["name"] = long
    for row in frames[0]["workers"]:
        row[1] = f"{long}{row[0]}"
    playbook.splits["now"] = {"classes": [long] * 12, "shards": [[5] * 12] * 3}
    page = visit(f"{server.address}/#/{hash_}", width=390, has_touch=True, is_mobile=True)
    page.locator("h1:visible").first.wait_for()
    page.wait_for_timeout(500)
    assert page.evaluate(NO_SCROLL)
    if "experiments" in hash_:
        page.get_by_role("button", name="As a table").click()
        assert page.evaluate(NO_SCROLL)


@pytest.mark.parametrize("width", [800, 1040, 1180, 1400])
def test_names_of_workers_are_read_in_windows_of_any_width(
    visit: Visit, server: PlayedServer, width: int
) -> None:
    """Columns beside them have widths of their own, and must leave room for "worker-1"."""
    page = visit(f"{server.address}/#/experiments/now", width=width)
    name = page.locator("#workers tbody th").first
    name.wait_for()
    assert name.evaluate("cell => cell.scrollWidth <= cell.clientWidth")
    assert name.evaluate("cell => cell.clientWidth") > 80


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_as_light_or_dark_as_the_system(
    visit: Visit, server: PlayedServer, scheme: Any
) -> None:
    """Text and canvas have the colours of the theme, and change with it."""
    page = visit(f"{server.address}/#/experiments/then", color_scheme=scheme)
    until(page, "window.downpour?.page?.timeline.frames > 0")
    corner = "[...downpour.page.timeline.context.getImageData(2, 2, 1, 1).data].slice(0, 3)"
    papers = {"light": [0xFD, 0xFD, 0xFC], "dark": [0x16, 0x19, 0x1D]}
    assert page.evaluate(corner) == papers[scheme]
    other: Any = "dark" if scheme == "light" else "light"
    page.emulate_media(color_scheme=other)
    until(page, f"paper => String({corner}) === paper", arg=",".join(map(str, papers[other])))
    text, paper = page.evaluate(
        "(({color, backgroundColor}) => [color, backgroundColor])(getComputedStyle(document.body))"
    )
    assert text != paper


def test_listeners_hear_of_states_and_not_of_every_frame(
    visit: Visit, server: PlayedServer, playbook: Playbook
) -> None:
    """The live region speaks when the experiment ends or a worker is lost, and is silent before."""
    page = visit(f"{server.address}/#/experiments/now")
    until(page, "window.downpour?.page?.timeline.frames > 2")
    assert page.locator("#announce").inner_text() == ""
    last = playbook.frames["now"][-1]
    told = playbook.frames["now"][0]["experiment"] | {"state": "finished", "ended_at": 200.0}
    lost = [*playbook.frames["now"][0]["workers"][0]]
    lost[2], lost[4] = "lost", 90.0
    ended = {"seq": last["seq"] + 1, "clock": last["clock"], "experiment": told, "workers": [lost]}
    playbook.append("now", ended)
    until(page, "document.querySelector('#announce').textContent.includes('finished')")
    assert "1 worker lost" in page.locator("#announce").inner_text()


def test_a_manager_that_was_killed_is_no_secret(
    visit: Visit, server: PlayedServer, playbook: Playbook
) -> None:
    """Its experiment still says that it runs, so the page says for how long nothing has come."""
    for frame in playbook.frames["now"]:
        frame["clock"] += 7300
    page = visit(f"{server.address}/#/experiments/now")
    page.get_by_text("Nothing new for 2 h").wait_for()
    page = visit(f"{server.address}/#/experiments/then")
    page.locator("#now").get_by_text("✓ finished").wait_for()
    assert page.locator("#now .reason").is_hidden()


def test_landmarks_and_headings_lead_through_the_page(visit: Visit, server: PlayedServer) -> None:
    """There is one main part, a heading for each section, and a way past the header."""
    page = visit(f"{server.address}/#/experiments/then")
    page.get_by_role("heading", name="five machines", level=1).wait_for()
    for name in ("Timeline", "Workers", "Why", "Results"):
        assert page.get_by_role("region", name=name, exact=True).first.is_visible()
    assert page.get_by_role("main").count() == 1
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.tagName") == "MAIN"


ZOOM = """seconds => new Promise(done => {
  const { page } = downpour, { timeline } = page, costs = [], begin = performance.now();
  const first = timeline.frames;
  const draw = timeline.draw.bind(timeline);
  timeline.draw = now => {
    const at = performance.now();
    draw(now);
    costs.push(performance.now() - at);
  };
  let turns = 0;
  const step = () => {
    const passed = (performance.now() - begin) / 1000;
    if (passed > seconds) {
      costs.sort((one, other) => one - other);
      return done({ frames: (timeline.frames - first) / passed, middle: costs[costs.length >> 1],
        worst: costs[costs.length - 1] });
    }
    timeline.view.zoom(turns % 80 < 40 ? 0.93 : 1 / 0.93, timeline.tables.latest / 2);
    if (turns % 3 === 0) timeline.view.zoomRows(turns % 80 < 40 ? 1.15 : 1 / 1.15, 200);
    turns += 1;
    page.changed();
    requestAnimationFrame(step);
  };
  step();
})"""


@pytest.mark.parametrize("width", [1280, 390])
def test_a_thousand_workers_and_a_hundred_rounds(
    visit: Visit, server: PlayedServer, playbook: Playbook, width: int
) -> None:
    """100,000 attempts are one canvas; the figures are printed, and depend on the machine."""
    made = made_run(1000, 100, open_round=True)
    playbook.frames = {"run": made.frames(running=True)}
    page = visit(server.address, width=width)
    until(page, "window.downpour?.page?.timeline.tables.attempts.count > 0")
    until(page, "downpour.page.timeline.frames > 0")
    count = len(made.rows["attempts"])
    until(page, "count => downpour.page.tables.attempts.count === count", arg=count)
    figures = page.evaluate(ZOOM, 4)
    elements = page.evaluate("document.querySelectorAll('*').length")
    heap = page.evaluate("performance.memory.usedJSHeapSize / 1e6")
    print(f"{width} pixels: {figures}, {elements} elements, {heap:.0f} MB")  # noqa: T201
    assert figures["frames"] > 0
    assert elements < 1500


PAGE = ROOT / "src" / "downpour" / "show" / "dashboard" / "page"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", ["experiments/then", "history"])
def test_every_reader_can_use_the_page(
    visit: Visit, server: PlayedServer, view: str, scheme: Any
) -> None:
    """Contrast, names, order and keyboard: by each rule of axe-core."""
    page = visit(f"{server.address}/#/{view}", color_scheme=scheme)
    until(page, "() => document.querySelectorAll('main table').length > 0")
    assert seen_by_axe(page) == []


def test_its_html_and_css_are_valid() -> None:
    """A browser would guess otherwise."""
    assert seen_by_vnu([PAGE / "index.html", PAGE / "page.css"], known="^$") == []
