"""The logs that the page's server gives out: of an experiment's time, bounded, and once each."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.experiments.page_server import feeds as log_feed
from downpour.experiments.page_server.feeds import PAGE_LINES, LogFeed, LogFeeds
from downpour.files.log_places import LogLine
from downpour.record.stored_experiments import LogFilter
from tests.files.logs.test_log_writer import Memory
from tests.show.dashboard.kept_logs import EXPERIMENT, SUBMITTED, logged, recorded_at
from tests.show.dashboard.served import Answer, Page, served

LINE = LogLine(
    at=1.0, host="red", name="worker-1", pid=1, level="info", source="stdout", text="hello"
)
ALL = LogFilter()


def feed_of(place: Memory) -> LogFeed:
    """Return a feed by whose clock a minute passes at each look."""
    return LogFeed(place, partial(next, count(0.0, 60.0)))


@dataclass
class LogViewer:
    """Keeps the lines that it is shown, as a page does."""

    feed: LogFeed
    wanted: LogFilter = ALL
    next: str = ""
    lines: list[str] = field(default_factory=list)

    def look(self) -> dict[str, Any]:
        answer = json.loads(json.dumps(self.feed.page(self.next, ALL, self.wanted)))
        self.next = answer["next"]
        shown = [row[5] for row in answer["lines"]]
        self.lines = shown if answer["anew"] else self.lines + shown
        return dict(answer)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A shared directory with an experiment."""
    recorded_at(tmp_path)
    return tmp_path


@pytest.fixture
def page(root: Path) -> Iterator[Page]:
    """Its page; the record says that the experiment took less than a minute."""
    record = root / "experiments" / EXPERIMENT / "record.jsonl"
    os.utime(record, (SUBMITTED + 60, SUBMITTED + 60))
    with served(root) as page:
        yield page


def ask(page: Page, **query: object) -> Answer:
    """Ask for logs."""
    return page.ask(f"/api/experiments/{EXPERIMENT}/logs?{urlencode(query)}")


def said(answer: Answer) -> list[str]:
    """The texts of an answer."""
    return [row[5] for row in answer.json["lines"]]


def put(place: Memory, lines: Sequence[LogLine]) -> None:
    """Add lines to a piece."""
    place.append("p-000000.jsonl", b"".join(line.to_bytes() for line in lines))


def test_a_line_has_all_that_was_said_and_who_said_it(root: Path, page: Page) -> None:
    """With a whole traceback; JSON that no browser takes for HTML."""
    trace = "Traceback (most recent call last):\n  <b>net.py</b>\nOSError: no luck"
    logged(root, "<img src=x>", at=2.0, level="error", trace=trace)
    answer = ask(page)
    row = [SUBMITTED + 2.0, "red", "d", "error", "downpour", "<img src=x>", trace]
    assert answer.json["lines"] == [row]
    assert (answer.json["anew"], answer.json["older"], answer.json["names"]) == (True, False, ["d"])
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_lines_of_another_time_belong_to_other_experiments(root: Path, page: Page) -> None:
    """The experiment's time reaches from its submission to when its record was written."""
    for at in (-3600.0, -1.0, 1.0, 59.0, 3600.0):
        logged(root, str(at), at=at)
    assert said(ask(page)) == ["-1.0", "1.0", "59.0"]


def test_an_experiment_that_runs_has_no_end_yet(root: Path) -> None:
    """What a process says later is of it as well."""
    record = root / "experiments" / EXPERIMENT / "record.jsonl"
    record.write_text("".join(record.read_text().splitlines(keepends=True)[:-1]))
    logged(root, "late", at=3600.0)
    with served(root) as page:
        assert said(ask(page)) == ["late"]


def test_viewers_choose_a_process_a_level_and_a_time(root: Path, page: Page) -> None:
    """Seconds count from the submission, with a little around them."""
    logged(root, "begins", at=1.0, name="manager")
    logged(root, "careful", at=20.0, level="warning")
    logged(root, "no luck", at=40.0, level="error")
    assert said(ask(page, worker="manager")) == ["begins"]
    assert said(ask(page, level="warning")) == ["careful", "no luck"]
    assert said(ask(page, level="error")) == ["no luck"]
    assert said(ask(page, **{"from": 19.5, "to": 30})) == ["careful"]
    assert said(ask(page, **{"from": 43})) == []
    assert ask(page, worker="manager").json["names"] == ["manager", "d"]


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ({"level": "loud"}, "level = 'loud': must be one of debug, info, warning, error"),
        ({"after": "7"}, "after = '7': must be the value of next in the last answer"),
        ({"from": "nan"}, "from = 'nan': must be seconds since the submission, such as 12.5"),
        ({"to": "1e9"}, "to = '1e9': must be seconds since the submission, such as 12.5"),
    ],
)
def test_a_bad_parameter_is_refused_in_one_line(
    page: Page, query: dict[str, str], told: str
) -> None:
    """Which names it, and says what it must be."""
    answer = ask(page, **query)
    assert (answer.status, answer.json) == (400, {"text": told})


def test_frames_say_whether_there_are_logs(root: Path) -> None:
    """So a page shows no part for what is not there."""
    with served(root) as page:
        assert page.ask(f"/api/experiments/{EXPERIMENT}/frame").json["logs"] is False
        assert ask(page).json["lines"] == []
    logged(root, "hello")
    with served(root) as page:
        assert page.ask(f"/api/experiments/{EXPERIMENT}/frame").json["logs"] is True
        assert page.ask("/api/experiments/nope/logs").status == 404


def test_a_folder_that_cannot_be_read_is_told(root: Path, page: Page) -> None:
    """In one line; the next question may be answered."""
    logged(root, "hello")
    folder = root / "logs" / "processes"
    folder.rename(root / "away")
    folder.write_text("no folder")
    answer = ask(page)
    assert (answer.status, "logs/processes" in answer.json["text"]) == (503, True)
    folder.unlink()
    assert ask(page).status == 200


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(["info", "warning"]), st.booleans()),
        max_size=12,
    )
)
def test_viewers_that_come_again_have_each_line_once(steps: list[Any]) -> None:
    """However often each of them comes; one that wants warnings misses none of them."""
    place = Memory()
    feed = feed_of(place)
    every, grave = LogViewer(feed), LogViewer(feed, LogFilter(level="warning"))
    written: list[LogLine] = []
    for more_lines, level, looks in steps:
        begin = len(written)
        more = [
            replace(LINE, level=level, text=str(number), at=float(number))
            for number in range(begin, begin + more_lines)
        ]
        put(place, more)
        written += more
        if looks:
            every.look()
        else:
            grave.look()
    every.look()
    grave.look()
    assert every.lines == [line.text for line in written]
    assert grave.lines == [line.text for line in written if line.level == "warning"]


def test_a_page_is_bounded_and_has_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says that there are older ones; a viewer that was away too long begins anew."""
    place = Memory()
    viewer = LogViewer(feed_of(place))
    put(place, [LINE] * 3)
    assert viewer.look()["older"] is False
    put(place, [LINE] * (PAGE_LINES + 1))
    answer = viewer.look()
    assert (len(answer["lines"]), answer["anew"], answer["older"]) == (PAGE_LINES, True, True)
    monkeypatch.setattr(log_feed, "_PAGE_CHARACTERS", 1000)
    put(place, [replace(LINE, text="x" * 600)] * 3)
    assert len(viewer.look()["lines"]) == 1


def test_a_process_that_talks_much_pushes_no_warning_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a feed keeps is bounded, and warnings have room of their own."""
    monkeypatch.setattr(log_feed, "_KEPT_CHARACTERS", 2000)
    place = Memory()
    feed = feed_of(place)
    put(place, [replace(LINE, level="warning", text="careful")])
    put(place, [LINE] * 100)
    every, grave = LogViewer(feed), LogViewer(feed, LogFilter(level="warning"))
    assert every.look()["older"] is True
    assert every.lines == ["hello"] * 19
    grave.look()
    assert grave.lines == ["careful"]


def test_a_server_that_was_started_again_begins_anew() -> None:
    """It has other numbers than the one before, so the viewer's list is replaced."""
    place = Memory()
    put(place, [LINE])
    viewer = LogViewer(feed_of(place))
    viewer.look()
    viewer.feed = feed_of(place)
    assert viewer.look()["anew"] is True
    assert viewer.lines == ["hello"]


def test_only_the_last_few_feeds_stay() -> None:
    """Each holds some megabytes."""
    feeds = LogFeeds(Memory())
    first = feeds.of("0")
    assert feeds.of("0") is first
    for number in range(1, 9):
        feeds.of(str(number))
    assert feeds.of("0") is not first
