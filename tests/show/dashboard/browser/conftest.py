"""A real browser, a server that plays frames, and a visitor who minds errors and requests.

Its tests are slow ones, so they run when the page changes, or when a merge draws them.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from tests.show.dashboard.browser.made_frames import MadeRun, made_run
from tests.show.dashboard.browser.played_server import Playbook, PlayedServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_NAMES = ("chromium", "chromium-browser", "google-chrome")
Visit = Callable[..., "Page"]


@dataclass(slots=True)
class Minutes:
    """What a visitor noticed: errors of scripts, and requests to anywhere but the page's server."""

    errors: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    def listen(self, page: Page, origin: str) -> None:
        """Note what happens on a page from now on."""

        def asked(url: str) -> None:
            if not url.startswith((f"{origin}/", "data:")):
                self.foreign.append(url)

        def said(text: str) -> None:
            if "Content Security Policy" in text or "Uncaught" in text:
                self.errors.append(text)

        page.on("pageerror", lambda error: self.errors.append(f"{error}\n{error.stack}"))
        page.on("console", lambda message: said(message.text))
        page.on("request", lambda request: asked(request.url))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start the browser of this machine; skip where there is none that starts."""
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        pytest.skip(f"none of {', '.join(_NAMES)} is installed")
    with driver.sync_playwright() as playwright:
        try:
            started = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        except driver.Error as error:
            pytest.skip(f"{found} does not start: {error.message.splitlines()[0]}")
        yield started
        started.close()


@pytest.fixture
def playbook() -> Playbook:
    """Return a running experiment on eight workers and one that has finished on five."""
    running = made_run(8, 6, open_round=True)
    finished = made_run(5, 9, seed=2, name="five machines")
    return Playbook(frames={"now": running.frames(running=True), "then": finished.frames()})


@pytest.fixture
def server(playbook: Playbook) -> Iterator[PlayedServer]:
    """Serve the playbook."""
    serving = PlayedServer(playbook)
    yield serving
    serving.close()


@pytest.fixture
def minutes() -> Minutes:
    """Return where the visitor takes notes."""
    return Minutes()


@pytest.fixture
def visit(browser: Browser, minutes: Minutes) -> Iterator[Visit]:
    """Open an address in a fresh window, and check at the end that nothing went wrong in any."""
    contexts = []

    def open_page(
        address: str, *, width: int = 1280, own_clock: bool = False, **options: Any
    ) -> Page:
        size: Any = {"width": width, "height": 844 if width < 600 else 900}
        context = browser.new_context(viewport=size, **options)
        context.set_default_timeout(60_000)
        contexts.append(context)
        page = context.new_page()
        if own_clock:
            page.clock.install()
        minutes.listen(page, "/".join(address.split("/")[:3]))
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert minutes.errors == []
    assert minutes.foreign == []


def until(page: Page, condition: str, arg: Any = None, seconds: float = 30.0) -> None:
    """Wait until a condition of JavaScript holds; the page's policy forbids Playwright's way."""
    end = time.monotonic() + seconds
    while not page.evaluate(condition, arg):
        assert time.monotonic() < end, f"not in {seconds} s: {condition}"
        page.wait_for_timeout(20)


def shown(page: Page, run: MadeRun) -> Page:
    """Wait until the page knows all attempts of a run, and has drawn them."""
    condition = (
        "count => window.downpour?.page?.tables.attempts.count === count"
        " && downpour.page.timeline.now > 0"
    )
    until(page, condition, len(run.rows["attempts"]))
    return page
