"""The figure of a comparison: mitigation, lost gradients and extra work, by scenario and policy.

Each dot is one job, so the figure shows how far jobs differ, and claims no more than we measured.
If a straggler appears early, in the middle and late in the rounds, the rows show the same as
figures 3 to 5 of DPro-SM (Ravikumar and Sriraman 2024). If models were trained, a panel shows
accuracy. Nothing here writes a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from statistics import fmean
from typing import TYPE_CHECKING, Any

from downpour.experiments.figures.style import LIGHT, styled
from downpour.virtual.policylab.comparison import BASELINE, ORACLES, Trial
from downpour.virtual.policylab.tables import by_policy, measured

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
    """
    from matplotlib.figure import Figure

    shown = [t for t in trials if t.contender.name not in (*ORACLES, BASELINE)] or list(trials)
    policies = list(by_policy(shown))
    scenarios = list(dict.fromkeys(trial.scenario for trial in shown))
    panels = [name for name in PANELS if _values(shown, name)]
    ratios = [_FIRST_PANELS] + [1.0] * (len(panels) - 1)
    width = _NAMES_INCHES + _PANEL_INCHES * sum(ratios)
    height = _LABELS_INCHES + len(scenarios) * (_TITLE_INCHES + _LANE_INCHES * len(policies))
    with styled("policies"):
        figure = Figure(figsize=(width, height), layout="constrained")
        shape: dict[str, Any] = {"sharex": "col", "sharey": True, "width_ratios": ratios}
        axes = figure.subplots(len(scenarios), len(panels), squeeze=False, **shape)
        for row, scenario in zip(axes, scenarios, strict=True):
            row[0].set_title(scenario)
            own = by_policy([trial for trial in shown if trial.scenario == scenario])
            for axis, measure in zip(row, panels, strict=True):
                _draw(axis, [_values(own.get(name, ()), measure) for name in policies])
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
    known = (measured(trial, measure) for trial in trials)
    return [100.0 * value for value in known if value is not None and isfinite(value)]


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
