"""A report as a whole: a folder, one page that needs nothing else, and the live page beside it."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest

from downpour.base.errors import SpecError
from downpour.base.states import ExperimentState
from downpour.record.study_result import RunResult, StudyResult, read_one
from downpour.show import report
from downpour.show.tables.report_tables import tables_of
from downpour.show.trace import TRACE_NAME
from tests.show.conftest import Make

HARM = "<script>alert('x')</script>"


@pytest.fixture(scope="module")
def study(make: Make) -> StudyResult:
    """Two subgrids."""
    return make.study(make.workers(), make.splits())


@pytest.fixture(scope="module")
def page(study: StudyResult, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of its report, drawn once: its figures take seconds."""
    return report.write_report(study, tmp_path_factory.mktemp("page") / "report").read_text("utf-8")


@pytest.mark.slow
def test_a_page_needs_nothing_else(page: str) -> None:
    """No script, no picture or style of elsewhere, no address but the names of XML's dialects."""
    assert "<script" not in page
    assert not re.search(r"<(img|link|iframe|object|embed)\b|@import|url\((?!#)", page)
    addresses = set(re.findall(r"https?://[^\"' <]+", page))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def test_names_within_figures_do_not_clash(page: str) -> None:
    """Each is there once, and so is everything that the page refers to."""
    names = re.findall(r' id="([^"]+)"', page)
    assert len(names) == len(set(names))
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', page)) <= set(names)


def test_a_page_is_light_or_dark_as_its_reader_is(page: str) -> None:
    """Both sets of colours are there, and figures use them; phones are told the width."""
    assert "prefers-color-scheme: dark" in page
    assert 'name="viewport"' in page
    assert page.count("<svg") == 12
    assert "var(--series-2)" in page


class Balance(HTMLParser):
    """Checks that every element that begins also ends."""

    VOID = frozenset({"meta", "br", "use", "path", "rect", "link"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        del attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """It must be the last that has."""
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_a_page_is_well_formed(page: str) -> None:
    """Elements end in the order in which they must."""
    parser = Balance()
    parser.feed(page)
    parser.close()
    assert parser.open == []


def test_what_a_spec_says_is_only_text(make: Make, tmp_path: Path) -> None:
    """Names, values and reasons are escaped, in the page and in its figures."""
    runs = [
        make.run([0.5], values=(value,), spec={"model": HARM, "split": "class"}, classes=(0.5,))
        for value in (HARM, "mlp")
    ]
    unlucky = make.run([], values=(HARM,), repetition=2)
    settings = [(HARM,), ("mlp",)]
    subgrid = make.subgrid(axes=("model",), settings=settings, runs=runs, failed=(unlucky,))
    page = report.write_report(make.study(subgrid), tmp_path / "report").read_text("utf-8")
    assert HARM not in page
    assert "&lt;script&gt;" in page


def test_no_name_is_a_formula(make: Make, tmp_path: Path) -> None:
    """A worker may be called what TeX could not set: its name is drawn as it is."""
    odd = "$\\frac{a$"
    spans = tuple(msgspec.structs.replace(one, worker=odd) for one in make.spans(workers=1))
    run = make.run([0.5], spans=spans, values=(odd,))
    subgrid = make.subgrid(axes=("model",), settings=[(odd,)], runs=[run])
    report.write_report(make.study(subgrid), tmp_path / "report")
    drawn = (tmp_path / "report").rglob("*.svg")
    assert any(odd in figure.read_text("utf-8") for figure in drawn)


def test_failures_are_told_by_their_settings(make: Make) -> None:
    """Repetitions that failed alike in one line, and a run that two subgrids share once.

    They count nowhere.
    """
    settings = [("random",), ("class",)]
    failed = tuple(make.run([], values=("class",), repetition=n) for n in (2, 1))
    subgrid = make.subgrid(
        axes=("split",),
        settings=settings,
        runs=[make.run([0.5], values=("random",))],
        failed=failed,
    )
    study = make.study(subgrid, replace(subgrid, name="again"))
    page = report.html_page(study, tables_of(study), [])
    assert re.findall("<li>(.*)</li>", page) == ["splits, split class, repetitions 1, 2: finished"]
    assert "2 failed" in page
    assert "2 of 12 runs, 3 repetitions each" in page


def test_what_failed_was_run_too(make: Make) -> None:
    """Its fields are among those that vary."""
    failed = (make.run([], repetition=2, spec={"learning_rate": 1e12}),)
    runs = [make.run([0.5], spec={"learning_rate": 0.1})]
    study = make.study(make.subgrid(settings=[()], runs=runs, failed=failed))
    assert "varies: 0.1, 1e+12" in report.html_page(study, tables_of(study), [])


def test_why_a_single_experiment_failed_is_told(make: Make) -> None:
    """At the top of its page."""
    run = make.run([0.5])
    state, reason = ExperimentState.FAILED, "the loss is nan"
    failed = replace(run, result=replace(run.result, state=state, reason=reason))
    study = make.study(make.subgrid(settings=[()], repetitions=1, runs=[failed]))
    assert "One experiment, failed: the loss is nan" in report.html_page(
        study, tables_of(study), []
    )


def test_a_group_of_which_nothing_has_ended_shows_no_empty_table(make: Make) -> None:
    """Only what was asked for."""
    nothing = make.subgrid(name="later", axes=("workers",), settings=[(1,), (2,)], runs=[])
    study = make.study(make.workers(), nothing)
    page = report.html_page(study, tables_of(study), [])
    assert "later: final accuracy and seconds" in page
    assert "later: epochs" not in page


def test_timelines_are_open_and_resources_are_folded_away(make: Make) -> None:
    """However many there are: which worker trained what is what a page is opened for."""
    study = make.study(make.subgrid(settings=[()], runs=[make.run([0.5])]))
    parts: tuple[report.Part, ...] = ("outcome", "timeline", "timeline", "timeline", "resources")
    drawn = [report.Drawn(part, "<svg></svg>", "splits", part) for part in parts]
    page = report.html_page(study, tables_of(study), drawn)
    folded = "".join(re.findall("<details.*?</details>", page, re.DOTALL))
    assert page.count("<figcaption>timeline.") == 3
    assert folded.count("<figcaption>timeline.") == 0
    assert folded.count("<figcaption>resources.") == page.count("<figcaption>resources.") == 1


def test_every_group_of_several_has_its_heading(make: Make) -> None:
    """Also one that is called as the study is; a lone one would repeat the title of the page."""
    alone = make.subgrid(name="made", settings=[()], runs=[make.run([0.5])])
    headings = [
        re.findall("<h2>(.*)</h2>", report.html_page(study, tables_of(study), []))
        for study in (
            make.study(alone),
            make.study(alone, make.splits()),
            make.study(make.splits()),
        )
    ]
    assert headings == [[], ["made", "splits"], ["splits"]]


def test_whatever_scrolls_can_be_scrolled_with_the_keyboard(page: str) -> None:
    """It can be reached, and has a name; so has every figure."""
    assert page.count('class="wide"') == page.count('tabindex="0"')
    for tag in re.findall(r'<div class="wide"[^>]*>', page):
        assert re.search(r'aria-label="[^"]+"', tag)
    assert page.count('role="img"') == page.count("<svg")


@pytest.mark.slow
def test_an_earlier_report_is_replaced_and_nothing_else(study: StudyResult, tmp_path: Path) -> None:
    """What an older one left over goes; a folder of something else is refused, untouched.

    `downpour trace ID` and a report on ID take the same folder by default, in any order.
    """
    out = tmp_path / "report"
    out.mkdir()
    (out / TRACE_NAME).write_text("{}", "utf-8")
    report.write_report(study, out)
    (out / "figures" / "old.png").write_bytes(b"")
    report.write_report(study, out)
    assert not (out / "figures" / "old.png").exists()
    assert (out / TRACE_NAME).read_text("utf-8") == "{}"
    (tmp_path / "figures").mkdir()
    with pytest.raises(SpecError, match="holds something other than a report"):
        report.write_report(study, tmp_path)
    with pytest.raises(SpecError, match="not a folder"):
        report.write_report(study, out / "index.html")
    assert (tmp_path / "figures").is_dir()


def test_nothing_run_is_nothing_to_report(make: Make, tmp_path: Path) -> None:
    """One line, and no folder."""
    with pytest.raises(SpecError, match="has no finished run to report on"):
        report.write_report(make.study(make.subgrid(settings=[()], runs=[])), tmp_path / "report")
    assert not list(tmp_path.iterdir())


def test_figures_are_counted_as_they_are_drawn(make: Make, tmp_path: Path) -> None:
    """A caller that waits sees the progress."""
    seen: list[tuple[int, int]] = []
    study = make.study(make.workers())
    report.write_report(study, tmp_path / "report", lambda done, total: seen.append((done, total)))
    assert seen == [(done, 6) for done in range(7)]


RECORDED = Path(__file__).parents[1] / "recorded" / "handoff"


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
    page = report.write_report(read_one(RECORDED), out).read_text("utf-8")
    experiment = run.result.experiment
    assert f'<a href="{report.LIVE_NAME}#/experiments/{experiment}">Zoom and replay</a>' in page
    assert list(data_of((out / report.LIVE_NAME).read_text("utf-8"))["frames"]) == [experiment]


def test_first_repetitions_come_first_until_the_page_is_full(
    make: Make, run: RunResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Full is a page by its runs, or by their attempts."""
    study = repeated(make, run, 3)
    assert list(report.write_live_copy(study, tmp_path)) == ["again-1", "again-2", "again-3"]
    monkeypatch.setattr(report, "RUNS_MAX", 2)
    assert list(report.write_live_copy(study, tmp_path)) == ["again-1", "again-2"]
    monkeypatch.setattr(report, "ATTEMPTS_MAX", len(run.result.spans))
    assert list(report.write_live_copy(study, tmp_path)) == ["again-1"]


def test_a_page_that_would_be_too_large_is_not_left_from_before(
    make: Make, run: RunResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be of other runs than the report."""
    report.write_live_copy(repeated(make, run, 1), tmp_path)
    assert (tmp_path / report.LIVE_NAME).exists()
    monkeypatch.setattr(report, "ATTEMPTS_MAX", len(run.result.spans) - 1)
    assert report.write_live_copy(repeated(make, run, 1), tmp_path) == {}
    assert not (tmp_path / report.LIVE_NAME).exists()


def test_runs_without_a_record_have_no_page(make: Make, tmp_path: Path) -> None:
    """A study may be made of results alone."""
    assert report.write_live_copy(make.study(make.workers()), tmp_path) == {}
    assert not list(tmp_path.iterdir())


def test_an_experiment_is_summed_up(make: Make) -> None:
    """How good, how long, who and on what; with what else one wants to know of each."""
    spans = (msgspec.structs.replace(make.spans(2)[0], outcome="moved"), *make.spans(2)[1:])
    run = make.run([0.5, 0.75], spans=spans, spec={"model": "mlp", "epochs": 5})
    facts = {fact.name: (fact.value, fact.note) for fact in report.facts_of(run.result)}
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
    names = [fact.name for fact in report.facts_of(begun)]
    assert names == ["epochs", "total time", "shards"]


def test_one_experiment_has_its_figures_on_top_and_tables_beside(make: Make) -> None:
    """A study has its table of outcomes there; an experiment's is among the others."""
    one = make.subgrid(settings=[()], runs=[make.run([0.5, 0.6])], repetitions=1)
    page = report.html_page(make.study(one), tables_of(make.study(one)), [])
    folded = "".join(re.findall("<details.*?</details>", page, re.DOTALL))
    assert '<dl class="facts">' in page
    assert "splits: epochs" in page.replace(folded, "")
    assert "splits: epochs" not in folded
    assert "splits: final accuracy and seconds" in folded
    several = make.study(make.splits())
    assert '<dl class="facts">' not in report.html_page(several, tables_of(several), [])
