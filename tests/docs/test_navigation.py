"""The navigation of the site: all pages, in the order in which the command line has its groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml
from typer import Context

from downpour.cli.commands import build, titled_commands
from tests.docs.pages import DOCS, ROOT, SITE


class _Plain(yaml.SafeLoader):
    """Reads past tags that name Python's objects."""


_Plain.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


def navigation() -> list[Any]:
    """Return the navigation as `mkdocs.yml` has it."""
    # The loader is a safe one that knows fewer tags.
    config = yaml.load((ROOT / "mkdocs.yml").read_text("utf-8"), _Plain)  # noqa: S506
    return list(config["nav"])


def _entries(entries: Any) -> Iterator[str]:
    for entry in entries if isinstance(entries, list) else [entries]:
        if isinstance(entry, str):
            yield entry
        else:
            for below in entry.values():
                yield from _entries(below)


def test_every_page_is_in_the_navigation_once() -> None:
    """A new page needs its line in `mkdocs.yml`, and a page that is gone loses it."""
    entries = sorted(_entries(navigation()))
    assert entries == sorted(page.path.relative_to(DOCS).as_posix() for page in SITE)


def test_how_to_pages_are_grouped_as_the_commands_are() -> None:
    """Who knows `downpour --help` finds the page, and the other way round."""
    (guides,) = (
        entry["How-to guides"]
        for entry in navigation()
        if isinstance(entry, dict) and "How-to guides" in entry
    )
    titles = [title for group in guides for title in group]
    group: Any = build()
    context = Context(group, info_name=group.name, **group.context_settings)
    assert titles == [title for title, _ in titled_commands(group, context)]
