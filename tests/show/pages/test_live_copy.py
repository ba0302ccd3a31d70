"""The page beside a report, with its figures at the top, to zoom and replay."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from downpour.record.study_result import RunResult, StudyResult, read_one
from downpour.show import report as live_copy
from downpour.show.report import LIVE_NAME, facts_of, html_page, write_live_copy, write_report
from downpour.show.tables.report_tables import tables_of
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


def test_an_experiment_is_summed_up(make: Make) -> None:
    """How good, how long, who and on what; with what else one wants to know of each."""
    spans = (msgspec.structs.replace(make.spans(2)[0], outcome="moved"), *make.spans(2)[1:])
    run = make.run([0.5, 0.75], spans=spans, spec={"model": "mlp", "epochs": 5})
    facts = {fact.name: (fact.value, fact.note) for fact in facts_of(run.result)}
    assert facts == {
        "test accuracy": ("75.00%", ""),
        "test loss": ("0.6000", "0.5000 in training"),
        "epochs": ("2 of 5", "2 rounds"),
        "total time": ("5.0 s", "4.0 s training"),
        "workers": ("2", "1 moved on"),
        "shards": ("2", "split random"),
        "training examples": ("100", "20 test examples"),
        "parameters": ("250", "mlp"),
    }


def test_what_was_not_measured_is_no_fact(make: Make) -> None:
    """An experiment that has only been submitted has neither a model nor examples."""
    begun = replace(make.run([]).result, train_samples=0)
    names = [fact.name for fact in facts_of(begun)]
    assert names == ["epochs", "total time", "shards"]


def test_one_experiment_has_its_figures_on_top_and_tables_beside(make: Make) -> None:
    """A study has its table of outcomes there; an experiment's is among the others."""
    one = make.subgrid(settings=[()], runs=[make.run([0.5, 0.6])], repetitions=1)
    page = html_page(make.study(one), tables_of(make.study(one)), [])
    folded = "".join(re.findall("<details.*?</details>", page, re.DOTALL))
    assert '<dl class="facts">' in page
    assert "splits: epochs" in page.replace(folded, "")
    assert "splits: epochs" not in folded
    assert "splits: final accuracy and seconds" in folded
    several = make.study(make.splits())
    assert '<dl class="facts">' not in html_page(several, tables_of(several), [])
