"""The site as each of the two generators builds it, and as a browser without a network shows it."""

import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.docs.audits import of_each_kind, passed_before, seen_by_axe, seen_by_vnu
from tests.docs.built import SITES, built, meant, shown
from tests.docs.pages import DOCS, ROOT, Page
from tests.docs.pages import SITE as PAGES
from tests.show.dashboard.browser.conftest import Visit, browser, minutes, visit

__all__ = ["browser", "minutes", "visit"]
pytestmark = pytest.mark.slow

PHONE = 390
HOME = Page(DOCS / "index.md")
LOOK_SECONDS = 200
THEME_ERRORS = (
    "“autocomplete” is only allowed|“autocorrect” not allowed|“for” attribute of the “label”"
)
"""In the HTML of the themes: attributes that browsers know or ignore."""


@pytest.fixture(scope="module", autouse=True)
def both_sites() -> None:
    """Build the site with both generators, which fail if they have a warning."""
    made = subprocess.run(
        ["make", "site-both"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=280
    )
    assert made.returncode == 0, made.stdout[-4000:] + made.stderr[-4000:]


@pytest.mark.parametrize("site", SITES.values(), ids=SITES)
def test_readers_see_the_pages_that_github_shows(site: Path) -> None:
    """Python's Markdown, which both use, differs from CommonMark in lists and in tables."""
    for page in PAGES:
        found, wanted = shown(built(site, page).read_text("utf-8")), meant(page)
        assert found.elements == wanted.elements, page.name
        assert found.text == wanted.text, page.name


@pytest.mark.parametrize("site", SITES.values(), ids=SITES)
def test_no_page_and_no_style_names_another_host(site: Path) -> None:
    """Except where a reader clicks: links of sentences may lead anywhere."""
    loads = re.compile(
        r"<(?:script|img|iframe|source|link)\b[^>]*(?:src|href)=\"?(https?://[^\"\s>]+)"
    )
    for page in site.rglob("*.html"):
        assert not loads.findall(page.read_text("utf-8")), page
    for style in site.rglob("*.css"):
        assert not re.findall(r"(?:url\(|@import)\s*['\"]?https?:", style.read_text("utf-8")), style


@pytest.mark.parametrize("site", SITES.values(), ids=SITES)
def test_every_page_fits_a_phone_and_loads_nothing_from_elsewhere(visit: Visit, site: Path) -> None:
    """Tables and blocks of code scroll by themselves; scripts raise no errors."""
    visitor = visit(built(site, HOME).as_uri(), width=PHONE)
    for page in PAGES:
        visitor.goto(built(site, page).as_uri(), wait_until="domcontentloaded")
        width = visitor.evaluate("document.documentElement.scrollWidth")
        assert width <= PHONE, f"{page.name}: {width} pixels wide"


@pytest.mark.parametrize("site", SITES.values(), ids=SITES)
def test_every_diagram_is_drawn_without_a_network(visit: Visit, site: Path) -> None:
    """The copy of Mermaid in the site draws it; one that it cannot read would stay as source."""
    pages = {page: page.text.count("```mermaid") for page in PAGES}
    assert sum(pages.values()) > 3
    visitor = visit(built(site, HOME).as_uri())
    for page, diagrams in pages.items():
        if diagrams:
            visitor.goto(built(site, page).as_uri())
            visitor.locator("div.mermaid").nth(diagrams - 1).wait_for(state="attached")
            assert visitor.locator("pre.mermaid").count() == 0, page.name


def test_the_html_and_css_of_every_page_are_valid() -> None:
    """By vnu, unless all are as in the last run."""
    with passed_before("vnu", *SITES.values()) as has_passed:
        if not has_passed:
            files = [built(site, page) for site in SITES.values() for page in PAGES]
            assert seen_by_vnu(files, known=THEME_ERRORS) == []


@pytest.mark.parametrize("site", SITES.values(), ids=SITES)
def test_every_reader_can_use_pages_of_each_kind(visit: Visit, site: Path) -> None:
    """By axe-core: on a phone and in the dark; unless all pages are as in the last run."""
    with passed_before(f"axe-{site.name}", site) as has_passed:
        if has_passed:
            return
        end, wrong = time.monotonic() + LOOK_SECONDS, []
        files = of_each_kind(built(site, page) for page in PAGES)
        for scheme, width in (("light", PHONE), ("dark", 1280)):
            visitor = visit(built(site, HOME).as_uri(), width=width, color_scheme=scheme)
            for file in files:
                visitor.goto(file.as_uri())
                wrong += [f"{scheme} {file.name} {line}" for line in seen_by_axe(visitor)]
                if time.monotonic() > end and not wrong:
                    pytest.skip(f"the browser is slow: nothing wrong after {LOOK_SECONDS} s")
        assert wrong == []


@pytest.mark.parametrize("site", SITES.values(), ids=SITES)
def test_the_search_finds_a_page_without_a_server(visit: Visit, site: Path) -> None:
    """Someone opens the page from a disk, types a few words and follows a result."""
    visitor = visit(built(site, HOME).as_uri())
    visitor.keyboard.press("/")
    visitor.keyboard.type("which mode on which machines")
    visitor.get_by_text("Which mode on which machines?").first.wait_for()


@pytest.mark.parametrize("site", SITES.values(), ids=SITES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_site_follows_the_reader_s_colors(visit: Visit, site: Path, scheme: Any) -> None:
    """A button changes to the other ones."""
    visitor = visit(built(site, HOME).as_uri(), color_scheme=scheme)
    drawn = visitor.locator("body").get_attribute("data-md-color-scheme")
    assert drawn == {"light": "default", "dark": "slate"}[scheme]
    assert visitor.locator("form[data-md-component=palette] input").count() == 2
