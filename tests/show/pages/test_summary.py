"""The figures at the top of a single experiment's page."""

from __future__ import annotations

import re
from dataclasses import replace

import msgspec

from downpour.show.pages.report import facts_of, html_page
from downpour.show.tables.report_tables import tables_of
from tests.show.conftest import Make


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
