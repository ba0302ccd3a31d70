"""One figure of a comparison: mitigation, gradient lost and extra work, by scenario and policy.

Where the straggler comes early, in the middle and late of the rounds, the panels show what figures
3 to 5 of DPro-SM (Ravikumar and Sriraman 2024) do. Accuracy is shown where models were trained.
Nothing here writes a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from downpour.policylab.comparison import BASELINE, ORACLES, Trial
from downpour.reports.policies import by_policy, estimate
from downpour.reports.style import WIDTH_INCHES, series, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = {
    "mitigation": "straggler time saved, %",
    "lost": "gradient lost, %",
    "extra_work": "extra work, %",
    "accuracy": "accuracy, %",
}
_PANEL_INCHES = 2.0
_LEGEND_INCHES = 0.22
_LEGEND_COLUMNS = 3
_GROUP_WIDTH = 0.8
_LEAST_ROOM = 0.5
_SHOWN_MIN = -100.0
"""Where a policy costs far more than waiting does, its bar is cut off."""


def policy_figure(trials: Sequence[Trial]) -> Figure:
    """Draw the panels below each other, a group of bars for each scenario."""
    from matplotlib.figure import Figure

    shown = [t for t in trials if t.contender.name not in (*ORACLES, BASELINE)] or list(trials)
    policies = list(by_policy(shown))
    scenarios = list(dict.fromkeys(trial.scenario for trial in shown))
    rows = -(-len(policies) // _LEGEND_COLUMNS)
    panels = {name: label for name, label in PANELS.items() if _known(shown, name)}
    height = _PANEL_INCHES * len(panels) + _LEGEND_INCHES * (rows + 1)
    with styled("policies"):
        figure = Figure(figsize=(max(WIDTH_INCHES, len(scenarios)), height), layout="constrained")
        axes = figure.subplots(len(panels), 1, sharex=True)
        for axis, (measure, label) in zip(axes, panels.items(), strict=True):
            _draw(axis, shown, measure, policies, scenarios)
            axis.set_ylabel(label)
        if "accuracy" in panels:
            axes[-1].set_ylim(*_around(shown))
        axes[0].set_ylim(bottom=max(_SHOWN_MIN, axes[0].get_ylim()[0]))
        axes[-1].set_xticks(range(len(scenarios)), scenarios, rotation=20, ha="right")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=_LEGEND_COLUMNS)
    return figure


def _known(trials: Sequence[Trial], measure: str) -> bool:
    return estimate(trials, measure) is not None


def _around(trials: Sequence[Trial]) -> tuple[float, float]:
    """Return the limits of an axis on which accuracies can be told apart."""
    known = [100.0 * trial.accuracy for trial in trials if trial.accuracy is not None]
    room = max(_LEAST_ROOM, 0.2 * (max(known) - min(known)))
    return max(0.0, min(known) - room), min(100.0, max(known) + room)


def _draw(
    axis: Axes, trials: Sequence[Trial], measure: str, policies: list[str], scenarios: list[str]
) -> None:
    width = _GROUP_WIDTH / len(policies)
    for place, policy in enumerate(policies):
        across, heights, errors = [], [], []
        for group, scenario in enumerate(scenarios):
            here = [t for t in trials if (t.contender.name, t.scenario) == (policy, scenario)]
            found = estimate(here, measure)
            if found is not None:
                across.append(group + (place - (len(policies) - 1) / 2) * width)
                heights.append(100.0 * found.mean)
                errors.append(100.0 * (found.half_width or 0.0))
        axis.bar(
            across,
            heights,
            width,
            yerr=errors if any(errors) else None,
            label=policy,
            color=series(place)["color"],
            hatch=("", "//", "..")[place // 6 % 3],
            edgecolor="white",
            linewidth=0.3,
            error_kw={"linewidth": 0.7},
        )
    axis.axhline(0.0, linewidth=0.6, color="black")
    axis.grid(visible=False, axis="x")
