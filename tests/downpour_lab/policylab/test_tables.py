"""Tables and figures of a comparison, and speeds as conditions."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes

from downpour.base.errors import SpecError
from downpour.base.states import Evaluation
from downpour.core.stragglers.base import POLICIES, Action, RoundView, Saving
from downpour.core.stragglers.handoff import contributions
from downpour.record.result_parts import Estimate, t_quantile
from downpour_lab.policylab.comparison import (
    Contender,
    Settings,
    Trial,
    compare_policies,
    rounds_on,
)
from downpour_lab.policylab.conditions import SAMPLES, Unequal
from downpour_lab.policylab.ledger import Reference, RoundOutcome
from downpour_lab.policylab.tables import (
    Prices,
    policy_figure,
    price_table,
    rows_of,
    scenario_table,
)
from tests.show.terminal import rendered

BY_ITSELF = Reference(
    wait=20.0, ideal=10.0, kind_ideal=12.0, best_hosts=15.0, whole_shards=14.0, divided=9.0
)


def trial(policy: str, seconds: float, job: str = "job 0", scenario: str = "s") -> Trial:
    """Make a trial of one round."""
    done = RoundOutcome(
        seconds=seconds, busy_seconds=44.0, useful_seconds=40.0, updates=4, snapshots=3
    )
    return Trial(Contender(name=policy, standbys=1), job, scenario, 4, (done,), (BY_ITSELF,))


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
    estimate = Estimate.of([0.0, 1.0])
    assert estimate is not None
    assert estimate.half_width == pytest.approx(t_quantile(1) * 0.5)
    told = rendered(scenario_table("calm", trials))
    assert "calm: 2 jobs" in told
    lines = {line.split()[0]: line.split() for line in told.splitlines() if line.strip()}
    assert lines["a"][1:4] == ["50.0", "±635", "62"]
    assert lines["b"][1:3] == ["50.0", "62"]
    assert "…" not in told


def test_oracles_do_no_work_and_cost_nothing() -> None:
    """So what they did not do is not shown as nothing done."""
    trials = [trial("wait", 20.0), trial("oracle-divided", 9.0)]
    assert "oracle" not in rendered(price_table(trials, Prices()))
    assert rows_of(trials, Prices())[1]["extra_work"] is None


def two_scenarios(*policies: str, seconds: float = 15.0) -> list[Trial]:
    """Make a trial of each policy in two scenarios."""
    return [trial(name, seconds, scenario=s) for s in ("early", "late") for name in policies]


def drawn(axis: Axes, name: str) -> list[tuple[float, float]]:
    """Return where the marks of one kind stand: across, and in which lane."""
    (line,) = (one for one in axis.lines if one.get_label() == name)
    return list(zip(np.asarray(line.get_xdata()), np.asarray(line.get_ydata()), strict=True))


def test_a_figure_has_a_row_a_scenario_and_a_named_lane_a_policy() -> None:
    """As many lanes as there are policies; waiting is their zero, and is not drawn."""
    names = [f"policy-{n}" for n in range(13)]
    figure = policy_figure(two_scenarios("wait", *names))
    early, late = figure.axes[:3], figure.axes[3:]
    assert [row[0].get_title("left") for row in (early, late)] == ["early", "late"]
    assert [axis.get_xlabel() for axis in late] == [
        "straggler time saved, %",
        "gradient lost, %",
        "extra work, %",
    ]
    for axis in (early[0], late[0]):
        assert [text.get_text() for text in axis.get_yticklabels()] == names
        assert drawn(axis, "a job") == [(50.0, lane) for lane in range(13)]


def test_a_figure_has_a_dot_a_job_and_their_mean() -> None:
    """A policy that was not run in a scenario has an empty lane there."""
    trials = [trial("x", 15.0), trial("x", 13.0, "job 1"), trial("y", 12.0)]
    figure = policy_figure([*trials, trial("y", 10.0, scenario="late")])
    assert drawn(figure.axes[0], "a job") == [(50.0, 0), (70.0, 0), (80.0, 1)]
    assert drawn(figure.axes[0], "mean of the jobs") == [(60.0, 0), (80.0, 1)]
    assert drawn(figure.axes[3], "a job") == [(100.0, 1)]


def test_a_figure_has_no_share_below_zero() -> None:
    """Nor an accuracy above 100; all panels of a measure have one axis."""
    right = Evaluation(
        loss=0.0, metrics={"accuracy": 1.0}, class_accuracy=(), samples=1, seconds=0.0
    )
    trials = [replace(one, evaluation=right) for one in two_scenarios("x", "y")]
    figure = policy_figure([*trials, trial("x", 18.0, "job 1", "late")])
    rows = figure.axes[:4], figure.axes[4:]
    for saved, lost, extra, accuracy in rows:
        assert saved.get_xlim() == rows[0][0].get_xlim()
        assert lost.get_xlim()[0] == extra.get_xlim()[0] == 0
        assert accuracy.get_xlim()[1] == 100


def test_a_cost_far_above_waiting_stands_at_the_edge() -> None:
    """An arrow with its number: an axis down to it would hide what the others differ in."""
    axis = policy_figure([*two_scenarios("slow", seconds=45.0), *two_scenarios("x")]).axes[0]
    assert axis.get_xlim()[0] == -100
    assert [text.get_text() for text in axis.texts] == ["\u2212250"]
    assert "<" in [line.get_marker() for line in axis.lines]
    assert drawn(axis, "a job") == [(50.0, 1)]


@pytest.mark.slow
def test_every_policy_is_tried_on_the_same_machines() -> None:
    """One machine of four takes four times as long, and a fifth one stands by."""
    outcomes = compare_policies([1, 1, 1, 0.25, 1], standbys=1, rounds=2)
    assert [one.policy for one in outcomes] == list(POLICIES)
    seconds = {one.policy: one.round_seconds for one in outcomes}
    assert seconds["wait"] == pytest.approx(40, rel=0.2)
    assert max(seconds.values()) == seconds["wait"]
    assert seconds["handoff"] < 20


def test_the_cost_of_a_policy_is_told() -> None:
    """Dropping the slowest of two loses its half; waiting costs time only."""
    wait, drop = compare_policies([1, 0.25], policies=["wait", "backup"], rounds=2)
    assert wait.lost == wait.moves == 0
    assert wait.extra_work == pytest.approx(0)
    assert drop.lost == pytest.approx(0.5)
    assert drop.extra_work > 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"speeds": []}, r"speeds.*must be a list of numbers above 0"),
        ({"speeds": [1, 0]}, r"speeds.*must be a list of numbers above 0"),
        ({"speeds": [1, 1], "standbys": 2}, r"standbys.*from 0 to 1; there are 2 speeds"),
        ({"speeds": [1], "policies": ["handof"]}, r"policies.*did you mean .?handoff"),
        ({"speeds": [1], "policies": "wait"}, r"policies.*must be a list"),
        ({"speeds": [1], "rounds": 0}, r"rounds.*from 1 to 10000"),
        ({"speeds": [1], "task_seconds": 0}, r"task_seconds.*above 0"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(given: dict[str, Any], said: str) -> None:
    """Which names the argument, and says what it accepts."""
    with pytest.raises(SpecError, match=said):
        compare_policies(**given)


HANDOFF = Contender(name="handoff", standbys=0, snapshots=True)

FAST = (1.0, 1.0, 1.0, 1.0)

SLOW = "host-0"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shards", "speed", "state"),
    [
        (5, 1 / 2, "trains"),
        (5, 1 / 4, "trains"),
        (5, 1 / 10, "trains"),
        (8, 1 / 4, "trains"),
        (8, 1 / 30, "stands by"),
    ],
)
def test_the_told_saving_of_a_machine_is_its_saving(shards: int, speed: float, state: str) -> None:
    """Within a tenth of the time, by the views that the scheduler makes while it trains."""
    said: list[Saving] = []

    def look(view: RoundView) -> Sequence[Action]:
        if view.round >= 2 and len(view.workers) > len(FAST):
            said.extend(contributions(view, (SAMPLES,) * shards, [SLOW]).values())
        return POLICIES["handoff"].decide(view)

    policies = {**POLICIES, "handoff": replace(POLICIES["handoff"], decide=look)}

    def seconds(*speeds: float) -> float:
        job = Unequal(speeds=speeds, hosts=shards, rounds=8)
        settings = Settings(heartbeat_seconds=0.5)
        rounds = rounds_on(len(speeds), HANDOFF, job, settings, policies=policies)
        return fmean(one.seconds for one in rounds[2:])

    saves = 1 - seconds(speed, *FAST) / seconds(*FAST)
    stands_by = median(one.stands_by for one in said)
    predicted = median(one.share for one in said)
    assert stands_by == (state == "stands by")
    assert abs((0.0 if stands_by else predicted) - saves) < 0.1
    assert predicted < 0 or not stands_by
