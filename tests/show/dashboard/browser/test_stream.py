"""The stream of frames in a browser: what breaks it, and that no row is lost or comes twice."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from tests.show.dashboard.browser.conftest import Visit, shown, until
from tests.show.dashboard.browser.made_frames import made_run
from tests.show.dashboard.browser.played_server import Playbook, PlayedServer

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow

DUMP = """tables => {
  const all = tables.attempts, columns = ["worker", "round", "shard", "attempt", "begin", "end",
    "outcome", "q10", "q50", "q90", "previous", "next"];
  return JSON.stringify({
    attempts: columns.map(name => [name, ...all[name].slice(0, all.count)]),
    rows: tables.rows, workers: tables.workers, rounds: [...tables.rounds],
    versions: [...tables.versions], evaluations: [...tables.evaluations],
    decisions: [...tables.decisions], latest: tables.latest, seq: tables.seq,
  });
}"""


@pytest.fixture
def later(playbook: Playbook) -> list[dict[str, Any]]:
    """Play the first half of a running experiment's frames, and return the second one."""
    frames = made_run(6, 12, open_round=True).frames(running=True, rows_most=40)
    half = len(frames) // 2
    playbook.frames = {"run": frames[:half]}
    return frames[half:]


def dump(page: Page) -> Any:
    """Return all that the page's tables hold."""
    return json.loads(page.evaluate(f"({DUMP})(downpour.page.tables)"))


def folded(page: Page, frames: list[dict[str, Any]]) -> Any:
    """Return what tables hold after these frames alone."""
    code = (
        "frames => { const t = new downpour.Tables(); frames.forEach(f => t.take(f)); return t; }"
    )
    return json.loads(page.evaluate(f"frames => ({DUMP})(({code})(frames))", frames))


def known(page: Page, seq: int) -> None:
    """Wait until the page knows a line."""
    until(page, "seq => window.downpour?.page?.tables.seq === seq", arg=seq)


@pytest.mark.parametrize("seed", range(5))
def test_rows_that_come_again_change_nothing(visit: Visit, server: PlayedServer, seed: int) -> None:
    """However rows are cut into frames, and whichever come twice, the tables are the same."""
    draw = random.Random(seed)
    made = made_run(4, 5, seed=seed)
    page = visit(f"{server.address}/#/history")
    until(page, "window.downpour?.page")
    whole = folded(page, made.frames())
    pieces = made.frames(rows_most=draw.choice([1, 7, 50]))
    for place in sorted(draw.sample(range(len(pieces)), len(pieces) // 3), reverse=True):
        pieces.insert(place + 1, pieces[place])
    found = folded(page, pieces)
    assert {**found, "seq": 0} == {**whole, "seq": 0}
    assert found["attempts"][0][0] == "worker"
    assert len(found["attempts"][0]) == len(made.rows["attempts"]) + 1


def test_a_server_that_was_killed_and_returns_goes_on_from_the_last_line(
    visit: Visit, playbook: Playbook, later: list[dict[str, Any]]
) -> None:
    """A banner says that what is shown may be old; then it goes, and no row is lost or doubled."""
    first = PlayedServer(playbook)
    page = visit(first.address)
    last = playbook.frames["run"][-1]["seq"]
    known(page, last)
    first.close()
    page.locator("#banner").wait_for()
    assert "may be old" in page.locator("#banner").inner_text()
    playbook.frames["run"] += later
    again = PlayedServer(playbook, first.port)
    known(page, later[-1]["seq"])
    page.locator("#banner").wait_for(state="hidden")
    assert dump(page) == folded(page, playbook.frames["run"])
    assert playbook.asked[-1] == last
    again.close()


def test_a_browser_that_was_offline_goes_on(
    visit: Visit, server: PlayedServer, playbook: Playbook, later: list[dict[str, Any]]
) -> None:
    """Without a network the page says so; with one it fetches what it has missed, at once."""
    page = visit(server.address)
    last = playbook.frames["run"][-1]["seq"]
    known(page, last)
    page.context.set_offline(True)
    page.get_by_text("This computer is offline").wait_for()
    playbook.frames["run"] += later
    page.context.set_offline(False)
    known(page, later[-1]["seq"])
    page.locator("#banner").wait_for(state="hidden")
    assert dump(page) == folded(page, playbook.frames["run"])


def test_a_browser_that_slept_for_an_hour_goes_on(
    visit: Visit, server: PlayedServer, playbook: Playbook, later: list[dict[str, Any]]
) -> None:
    """A connection may die silently in a sleep: the page sees the lost hour and connects anew."""
    page = visit(server.address, own_clock=True)
    last = playbook.frames["run"][-1]["seq"]
    known(page, last)
    page.evaluate("downpour.page.stream.events.close()")  # dead, and no event tells of it
    playbook.frames["run"] += later
    page.clock.fast_forward(3_600_000)
    known(page, later[-1]["seq"])
    assert dump(page) == folded(page, playbook.frames["run"])
    assert playbook.asked[-1] == last


def test_another_record_in_the_same_place_begins_anew(
    visit: Visit, server: PlayedServer, playbook: Playbook
) -> None:
    """If a shorter record has taken its place, a server begins anew, and nothing old stays."""
    page = visit(f"{server.address}/#/experiments/now")
    known(page, playbook.frames["now"][-1]["seq"])
    other = made_run(2, 2, name="another one")
    frames = other.frames()
    page.evaluate("downpour.page._take({ seq: 9 })")
    page.evaluate("frames => frames.forEach(frame => downpour.page._take(frame))", frames)
    shown(page, other)
    assert dump(page) == folded(page, frames)
    assert page.locator("h1").first.inner_text() == "another one"
