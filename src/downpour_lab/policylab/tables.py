"""A comparison of policies as tables and a figure.

Means are over jobs, with 95 % intervals. Nothing here prints or writes a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import fmean
from typing import TYPE_CHECKING, Any

from downpour.record.result_parts import Estimate
from downpour.show.figures.style import LIGHT, new_figure, styled
from downpour.show.tables.terminal_tables import text_table
from downpour_lab.policylab.comparison import BASELINE, ORACLES, Trial
from downpour_lab.policylab.recorded import grouped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.table import Table


_NO_WORK = "oracle"
_HOUR_SECONDS = 3600.0
_ROUNDS = 1000
_WIDE = 10.0
_HELD_MODELS = 3
"""A training node holds the parameters, their gradients and their momentum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """The price of a node's hour, and the model's size."""

    node_hour: float = 1.0
    model_mb: float = 5.0

    def of(self, trial: Trial) -> dict[str, float]:
        """Return the resources of a job: nodes, memory, a round's written data, and money."""
        hourly = trial.nodes * self.node_hour
        hours = trial.seconds / len(trial.rounds) * _ROUNDS / _HOUR_SECONDS
        return {
            "nodes": trial.nodes,
            "memory_mb": trial.nodes * _HELD_MODELS * self.model_mb,
            "written_mb_per_round": trial.published * self.model_mb,
            "cost_per_hour": hourly,
            "cost_per_1000_rounds": hourly * hours,
        }


MEASURES = {
    "mitigation": ("mitigation\n%", 100.0, ".1f"),
    "kind_mitigation": ("kind\n%", 100.0, ".0f"),
    "mean_over_ideal": ("mean/\nideal", 1.0, ".2f"),
    "p99_over_ideal": ("p99/\nideal", 1.0, ".2f"),
    "extra_work": ("extra\n%", 100.0, ".1f"),
    "lost": ("lost\n%", 100.0, ".1f"),
    "accuracy": ("accu-\nracy", 100.0, ".1f"),
    "loss": ("test\nloss", 1.0, ".4f"),
    "moves": ("moves", 1.0, ".1f"),
}
"""Each measure of a `Trial`: its column header, factor and number format."""

_WITH_INTERVAL = "mitigation"
_OF_WORK = {"extra_work", "moves"}
_ONE_OF = {"accuracy", "loss", "moves"}


def rows_of(trials: Sequence[Trial], prices: Prices) -> list[dict[str, Any]]:
    """Return a row for each policy in each job; we don't measure the work of oracles."""
    return [
        {
            "scenario": trial.scenario,
            "job": trial.job,
            "policy": trial.contender.name,
            "standbys": trial.contender.standbys,
            "rounds": len(trial.rounds),
            "mean_round_seconds": trial.seconds / len(trial.rounds),
            **{name: measured(trial, name) for name in MEASURES},
            "worst_class_accuracy": trial.worst_class_accuracy,
            **prices.of(trial),
        }
        for trial in trials
    ]


def by_policy(trials: Sequence[Trial]) -> dict[str, list[Trial]]:
    """Group trials by the names of their contenders."""
    return grouped((trial.contender.name, trial) for trial in trials)


def scenario_table(scenario: str, trials: Sequence[Trial]) -> Table:
    """Return a table of one scenario: each policy's means over its jobs."""
    jobs = len({(trial.scenario, trial.job) for trial in trials})
    # Of accuracy, loss and moves, we show only the first measured one.
    trained = any(trial.evaluation is not None for trial in trials)
    accurate = any(trial.accuracy is not None for trial in trials)
    last = "accuracy" if accurate else "loss" if trained else "moves"
    measures = [name for name in MEASURES if name == last or name not in _ONE_OF]
    title = f"{scenario}: {jobs} job{'s' * (jobs > 1)}"
    policies = by_policy(trials)
    columns = [
        (MEASURES[measure][0], [_cell(jobs_of_it, measure) for jobs_of_it in policies.values()])
        for measure in measures
    ]
    return text_table([("policy", list(policies)), *columns], title=title)


def price_table(trials: Sequence[Trial], prices: Prices) -> Table:
    """Return a table of each policy's needs: nodes, memory, written megabytes, and money."""
    working = {n: jobs for n, jobs in by_policy(trials).items() if not n.startswith(_NO_WORK)}
    costs = [[prices.of(trial) for trial in jobs] for jobs in working.values()]
    columns = {
        "memory\nMB": ("memory_mb", ",.0f"),
        "written,\nMB/round": ("written_mb_per_round", ",.0f"),
        "cost/\nhour": ("cost_per_hour", ",.2f"),
        f"cost/{_ROUNDS}\nrounds": ("cost_per_1000_rounds", ",.2f"),
    }
    means = [
        (header, [f"{fmean(cost[key] for cost in of_jobs):{written}}" for of_jobs in costs])
        for header, (key, written) in columns.items()
    ]
    standbys = [str(jobs[0].contender.standbys) for jobs in working.values()]
    first = [("policy", list(working)), ("stand-\nbys", standbys)]
    return text_table([*first, *means], title="what it takes")


def measured(trial: Trial, measure: str) -> float | None:
    """Return a policy's measure in one job; None if the job doesn't have it."""
    oracle = trial.contender.name.startswith(_NO_WORK)
    return None if oracle and measure in _OF_WORK else getattr(trial, measure)


def _cell(trials: Sequence[Trial], measure: str) -> str:
    estimated = Estimate.of(measured(trial, measure) for trial in trials)
    if estimated is None:
        return "-"
    _, factor, written = MEASURES[measure]
    text = f"{estimated.mean * factor:{written}}"
    text = text.removeprefix("-") if float(text) == 0 else text
    if measure != _WITH_INTERVAL or estimated.half_width is None:
        return text
    width = estimated.half_width * factor
    return f"{text} ±{width:{'3.0f' if width >= _WIDE else '3.1f'}}"


PANELS = {
    "mitigation": "straggler time saved, %",
    "lost": "gradient lost, %",
    "extra_work": "extra work, %",
    "accuracy": "accuracy, %",
}
_PANEL_INCHES = 1.5
_FIRST_PANELS = 2.0
"""How many times wider the first panel is, because most policies differ little in it."""
_NAMES_INCHES = 1.3
_LANE_INCHES = 0.19
_TITLE_INCHES = 0.35
_LABELS_INCHES = 0.7
"""The height below the last row, for the measures' names and the legend."""
_ROOM = 0.06
"""The share of an axis that stays free beyond the outermost dots."""
_LEAST_ROOM = 0.5
_SHOWN_MIN = -100.0
"""If a policy costs a job far more than waiting, we draw an arrow at the edge and the number."""

Values = list[float]


def policy_figure(trials: Sequence[Trial]) -> Figure:
    """Draw a row of panels for each scenario, a panel for each measure, and a lane per policy.

    All panels of a measure share one axis. Each row has the policies' names on the left.

    The measures are mitigation, lost gradients, extra work and, if models were trained, accuracy.
    Each dot is one job, so the figure shows how far jobs differ, and claims no more than we
    measured. If a straggler appears early, in the middle and late in the rounds, the rows show the
    same as figures 3 to 5 of DPro-SM (Ravikumar and Sriraman 2024).
    """
    shown = [t for t in trials if t.contender.name not in (*ORACLES, BASELINE)] or list(trials)
    policies = list(by_policy(shown))
    scenarios = list(dict.fromkeys(trial.scenario for trial in shown))
    panels = [name for name in PANELS if _values(shown, name)]
    ratios = [_FIRST_PANELS] + [1.0] * (len(panels) - 1)
    width = _NAMES_INCHES + _PANEL_INCHES * sum(ratios)
    height = _LABELS_INCHES + len(scenarios) * (_TITLE_INCHES + _LANE_INCHES * len(policies))
    with styled("policies"):
        figure = new_figure(width, height)
        shape: dict[str, Any] = {"sharex": "col", "sharey": True, "width_ratios": ratios}
        axes = figure.subplots(len(scenarios), len(panels), squeeze=False, **shape)
        for row, scenario in zip(axes, scenarios, strict=True):
            row[0].set_title(scenario)
            jobs = by_policy([trial for trial in shown if trial.scenario == scenario])
            for axis, measure in zip(row, panels, strict=True):
                _draw(axis, [_values(jobs.get(name, ()), measure) for name in policies])
        for axis, measure in zip(axes[-1], panels, strict=True):
            axis.set_xlabel(PANELS[measure])
            axis.set_xlim(*_limits(measure, _values(shown, measure)))
        axes[0, 0].set_yticks(range(len(policies)), policies)
        axes[0, 0].set_ylim(len(policies) - 0.5, -0.5)
        figure.legend(
            *axes[0, 0].get_legend_handles_labels(),
            loc="outside lower right",
            ncols=2,
            handletextpad=0,
        )
    return figure


def _values(trials: Sequence[Trial], measure: str) -> Values:
    """Return the measured values, in percent, job by job."""
    values = (measured(trial, measure) for trial in trials)
    return [100.0 * value for value in values if value is not None and isfinite(value)]


def _draw(axis: Axes, lanes: Sequence[Values]) -> None:
    """Draw each policy's jobs as dots in its lane, and their mean as a vertical line."""
    # Don't clip, so that a dot on the edge stays whole.
    look: dict[str, Any] = {"linestyle": "", "clip_on": False}
    dots = [(value, lane) for lane, values in enumerate(lanes) for value in values]
    near = [dot for dot in dots if dot[0] >= _SHOWN_MIN]
    blue: dict[str, Any] = {"color": LIGHT["series-1"], "markeredgewidth": 0, **look}
    axis.plot(*_across(near), marker="o", alpha=0.5, zorder=3, label="a job", **blue)
    means = [(fmean(values), lane) for lane, values in enumerate(lanes) if values]
    ink: dict[str, Any] = {"color": LIGHT["ink"], "markersize": 9, "markeredgewidth": 1.3, **look}
    inside = [mean for mean in means if mean[0] >= _SHOWN_MIN]
    axis.plot(*_across(inside), marker="|", zorder=4, label="mean of the jobs", **ink)
    for lane, least in enumerate(min(values, default=0.0) for values in lanes):
        if least < _SHOWN_MIN:
            axis.plot([_SHOWN_MIN], [lane], marker="<", zorder=3, **blue)
            text: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 7.5}
            axis.annotate(f"\u2212{-least:.0f}", (_SHOWN_MIN, lane), (5, 0), **text)
    axis.axvline(0.0, linewidth=0.6, color=LIGHT["ink"], zorder=1)
    axis.tick_params(axis="y", length=0)


def _across(dots: Sequence[tuple[float, int]]) -> tuple[list[float], list[int]]:
    return [x for x, _ in dots], [lane for _, lane in dots]


def _limits(measure: str, values: Values) -> tuple[float, float]:
    """Return the limits of a measure's axis: shares are never negative, but time saved may be."""
    low, high = min(values), max(values)
    if measure == "accuracy":
        room = max(_LEAST_ROOM, 0.2 * (high - low))
        return max(0.0, low - room), min(100.0, high + room)
    if measure == "mitigation":
        low, high = min(0.0, max(_SHOWN_MIN, low)), max(0.0, high)
        room = _ROOM * ((high - low) or 1.0)
        return (low if low == _SHOWN_MIN else low - room), high + room
    return 0.0, max(1.0, (1 + _ROOM) * high)
