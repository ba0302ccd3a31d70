"""Copies of the page and of journals: all that is needed is inside."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from downpour.experiments.page_server import place
from downpour.show.dashboard import page_data
from downpour.show.dashboard.page_data import static_page
from tests.files.objects.cloud import URL, Cloud
from tests.files.objects.test_mirror import DROPPED, begun
from tests.show.dashboard.records import write_large
from tests.show.dashboard.served import served
from tests.show.dashboard.viewer import Viewer

RECORDED = Path(__file__).parents[2] / "recorded"

FOLDERS = [RECORDED / "handoff", RECORDED / "gestures"]


class Parsed(HTMLParser):
    """What a browser makes of a page: its scripts, its styles, its title and its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: dict[str, list[str]] = {"script": [], "style": [], "title": [], "data": []}
        self.links: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note where an element begins, and what it refers to."""
        given = dict(attrs)
        self.links += [given[name] or "" for name in ("src", "href", "action") if name in given]
        is_data = given.get("id") == "downpour-data"
        self._inside = "data" if is_data else tag
        if self._inside in self.texts:
            self.texts[self._inside].append("")

    def handle_endtag(self, tag: str) -> None:
        """Note where it ends."""
        del tag
        self._inside = ""

    def handle_data(self, data: str) -> None:
        """Keep its text."""
        if self._inside in self.texts:
            self.texts[self._inside][-1] += data


def data_of(text: str) -> Any:
    """The data inside of a page."""
    (found,) = Parsed(text).texts["data"]
    return json.loads(found)


def test_a_copy_has_what_the_server_would_send() -> None:
    """Frames, histories of tasks, and the names of the experiments."""
    data = data_of(static_page(FOLDERS, "two runs"))
    assert data["experiments"] == [
        {"id": "uneven-51c0", "name": "uneven"},
        {"id": "gestures-7f3a", "name": "gestures"},
    ]
    viewer = Viewer()
    for frame in data["frames"]["uneven-51c0"]:
        viewer.see(frame)
    assert len(viewer.rows("attempts")) == 14
    assert viewer.experiment["state"] == "finished"
    assert data["tasks"]["uneven-51c0"]["1/3"][0][1].startswith("the manager gave it to d")


def test_the_policy_allows_the_scripts_and_styles_inside_and_nothing_else() -> None:
    """By their hashes; nothing refers to another file."""
    text = static_page(FOLDERS, "two runs")
    page = Parsed(text)
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for kind in ("script", "style"):
        assert page.texts[kind]
        allowed = re.findall(rf"{kind}-src ([^;]+)", policy)[0].split()
        digests = (hashlib.sha256(one.encode()).digest() for one in page.texts[kind])
        assert allowed == [f"'sha256-{base64.b64encode(one).decode()}'" for one in digests]
    assert not [link for link in page.links if "//" in link or "assets" in link]


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    """Neither a name nor the title can end the script or add one."""
    hostile = "</script><script>alert(1)</script><!--<script>"
    file = write_large(tmp_path, 2, 1)
    plain = Parsed(static_page([tmp_path], "plain"))
    file.write_text(file.read_text().replace('"large"', json.dumps(hostile)))
    text = static_page([tmp_path], hostile)
    page = Parsed(text)
    assert page.texts["script"] == plain.texts["script"]
    assert page.texts["title"] == [hostile]
    assert data_of(text)["experiments"][0]["name"] == hostile


def test_a_copy_of_a_large_record_says_what_it_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Histories of tasks, which would be most of it."""
    monkeypatch.setattr(page_data, "HISTORY_LINES_MAX", 50)
    write_large(tmp_path, 4, 4)
    data = data_of(static_page([tmp_path, FOLDERS[1]], "large"))
    assert data["tasks"].keys() == {"gestures-7f3a"}
    assert "more than 50 lines: histories of tasks are left out" in data["left_out"]


def test_a_page_of_a_bucket_follows_what_the_manager_puts_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without a folder that both see; experiments that come later are listed as well."""
    monkeypatch.setattr(place, "LOOK_SECONDS", 0.0)
    cloud = Cloud(monkeypatch, tmp_path)
    manager = cloud.on("manager", create=True)
    with served(URL) as page:
        assert page.ask("/api/experiments").json["experiments"] == []
        journal = begun(manager)
        (row,) = page.ask("/api/experiments").json["experiments"]
        assert (row["id"], row["state"]) == ("one", "preparing")
        with page.events("one") as events:
            assert next(events)[1]["seq"] == 1
            journal.append(2, 1.0, DROPPED)
            journal.commit()
            name, frame = next(events)
            assert (name, frame["seq"]) == ("frame", 2)
            assert frame["decisions"][0][2:4] == ["drop", "close round 1 without shards 1: late"]
