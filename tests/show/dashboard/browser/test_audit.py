"""The live page as axe-core and vnu judge it."""

from typing import Any

import pytest

from tests.docs.audits import seen_by_axe, seen_by_vnu
from tests.docs.pages import ROOT
from tests.show.dashboard.browser.conftest import Visit, until
from tests.show.dashboard.browser.played_server import PlayedServer

pytestmark = pytest.mark.slow
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
