"""A thousand workers and a hundred rounds in a browser: few elements, and frames while zooming."""

from __future__ import annotations

import pytest

from tests.show.dashboard.browser.conftest import Visit, until
from tests.show.dashboard.browser.made_frames import made_run
from tests.show.dashboard.browser.played_server import Playbook, PlayedServer

pytestmark = pytest.mark.slow

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
