"""The page to zoom and replay lies beside a report, and has as many of its runs as it may."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from downpour.record.study_result import RunResult, StudyResult, read_one
from downpour.show.pages import report as live_copy
from downpour.show.pages.report import LIVE_NAME, write_live_copy, write_report
from tests.show.conftest import Make

RECORDED = Path(__file__).parents[2] / "recorded" / "handoff"


@pytest.fixture
def run() -> RunResult:
    """A run whose record is there."""
    (run,) = read_one(RECORDED).subgrids[0].runs
    return run


def repeated(make: Make, run: RunResult, repetitions: int) -> StudyResult:
    """Make a study of a run that was repeated, the last repetition first."""
    runs = [
        replace(run, repetition=n, result=replace(run.result, experiment=f"again-{n}"))
        for n in range(repetitions, 0, -1)
    ]
    return make.study(make.subgrid(settings=[()], runs=runs))


def data_of(page: str) -> Any:
    """Return the data inside the page."""
    found = re.search(r'id="downpour-data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_a_report_links_to_where_its_run_can_be_replayed(run: RunResult, tmp_path: Path) -> None:
    """The address names the experiment that the page has."""
    out = tmp_path / "report"
    page = write_report(read_one(RECORDED), out).read_text("utf-8")
    experiment = run.result.experiment
    assert f'<a href="{LIVE_NAME}#/experiments/{experiment}">Zoom and replay</a>' in page
    assert list(data_of((out / LIVE_NAME).read_text("utf-8"))["frames"]) == [experiment]


def test_first_repetitions_come_first_until_the_page_is_full(
    make: Make, run: RunResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Full is a page by its runs, or by their attempts."""
    study = repeated(make, run, 3)
    assert list(write_live_copy(study, tmp_path)) == ["again-1", "again-2", "again-3"]
    monkeypatch.setattr(live_copy, "RUNS_MAX", 2)
    assert list(write_live_copy(study, tmp_path)) == ["again-1", "again-2"]
    monkeypatch.setattr(live_copy, "ATTEMPTS_MAX", len(run.result.spans))
    assert list(write_live_copy(study, tmp_path)) == ["again-1"]


def test_a_page_that_would_be_too_large_is_not_left_from_before(
    make: Make, run: RunResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be of other runs than the report."""
    write_live_copy(repeated(make, run, 1), tmp_path)
    assert (tmp_path / LIVE_NAME).exists()
    monkeypatch.setattr(live_copy, "ATTEMPTS_MAX", len(run.result.spans) - 1)
    assert write_live_copy(repeated(make, run, 1), tmp_path) == {}
    assert not (tmp_path / LIVE_NAME).exists()


def test_runs_without_a_record_have_no_page(make: Make, tmp_path: Path) -> None:
    """A study may be made of results alone."""
    assert write_live_copy(make.study(make.workers()), tmp_path) == {}
    assert not list(tmp_path.iterdir())
