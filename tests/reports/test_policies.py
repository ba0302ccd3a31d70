"""A comparison's rows, tables and figure, from trials made by hand."""

from __future__ import annotations

import pytest
from matplotlib.patches import Rectangle
from rich.console import Console

from downpour.policylab.comparison import Contender, Trial
from downpour.policylab.ledger import RoundFigures
from downpour.policylab.reference import Reference
from downpour.reports.policies import Prices, csv_of, price_table, rows_of, scenario_table
from downpour.reports.policy_figure import policy_figure
from downpour.reports.statistics import Estimate, t_quantile

BY_ITSELF = Reference(
    wait=20.0, ideal=10.0, kind_ideal=12.0, best_hosts=15.0, whole_shards=14.0, divided=9.0
)


def trial(policy: str, seconds: float, job: str = "job 0", scenario: str = "s") -> Trial:
    """Make a trial of one round."""
    done = RoundFigures(
        seconds=seconds, busy_seconds=44.0, useful_seconds=40.0, updates=4, snapshots=3
    )
    return Trial(Contender(name=policy, standbys=1), job, scenario, 4, (done,), (BY_ITSELF,))


def shown(table: object) -> str:
    """Print a table as a terminal of eighty columns would."""
    console = Console(width=80, record=True)
    console.print(table)
    return console.export_text()


def test_prices_are_of_nodes_hours_and_models() -> None:
    """Four nodes and a standby; three models a node; four updates and three snapshots of two."""
    costs = Prices(node_hour=2.0, model_mb=10.0).of(trial("wait", 18.0))
    assert costs == {
        "nodes": 5,
        "memory_mb": 150.0,
        "written_mb_per_round": 100.0,
        "cost_per_hour": 10.0,
        "cost_per_1000_rounds": pytest.approx(10.0 * 5.0),
    }


def test_a_table_has_means_and_intervals_over_jobs() -> None:
    """By Student's t, where there are two jobs at least."""
    trials = [trial("a", 20.0), trial("a", 10.0, "job 1"), trial("b", 15.0)]
    found = Estimate.of([0.0, 1.0])
    assert found is not None
    assert found.half_width == pytest.approx(t_quantile(1) * 0.5)
    told = shown(scenario_table("calm", trials))
    assert "calm: 2 jobs" in told
    lines = {line.split()[0]: line.split() for line in told.splitlines() if line.strip()}
    assert lines["a"][1:4] == ["50.0", "±635", "62"]
    assert lines["b"][1:3] == ["50.0", "62"]
    assert "…" not in told


def test_oracles_do_no_work_and_cost_nothing() -> None:
    """So what they did not do is not shown as nothing done."""
    trials = [trial("wait", 20.0), trial("oracle-divided", 9.0)]
    assert "oracle" not in shown(price_table(trials, Prices()))
    assert rows_of(trials, Prices())[1]["extra_work"] is None
    assert csv_of(trials, Prices()).count("\n") == 3


def test_a_figure_has_a_group_a_scenario_and_a_bar_a_policy() -> None:
    """Three panels below each other; waiting is their zero, and is not drawn."""
    trials = [
        trial(name, 15.0, scenario=s) for s in ("early", "late") for name in ("wait", "x", "y")
    ]
    figure = policy_figure(trials)
    assert [axis.get_ylabel() for axis in figure.axes] == [
        "straggler time saved, %",
        "gradient lost, %",
        "extra work, %",
    ]
    top, _, below = figure.axes
    heights = [patch.get_height() for patch in top.patches if isinstance(patch, Rectangle)]
    assert heights == pytest.approx([50.0] * 4)
    assert [text.get_text() for text in below.get_xticklabels()] == ["early", "late"]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["x", "y"]
