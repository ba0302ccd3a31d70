"""The kept runs of `lab.py` as a table and as a figure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from downpour.show.figures.style import LIGHT, WIDTH_INCHES, styled, to_svg

Run = Mapping[str, Any]
Setting = tuple[str, int, str]
_PANEL_INCHES = 1.45


def settings(runs: Iterable[Run]) -> dict[Setting, dict[str, list[Run]]]:
    """Return the runs by network, hosts and disturbance, and of each by system, in their order."""
    found: dict[Setting, dict[str, list[Run]]] = {}
    for run in runs:
        setting = run["profile"], run["hosts"], run["disturbance"]
        found.setdefault(setting, {}).setdefault(run["system"], []).append(run)
    return found


def markdown(runs: Iterable[Run]) -> str:
    """Return the medians as a table: a row for each system in each setting, the soonest first."""
    heads = ["network", "hosts", "disturbance", "system", "first batch, s", "to 97 %, s"]
    lines = [_line([*heads, "sent, MB", "load", "runs"]), "|---|--:|---|---|--:|--:|--:|--:|--:|"]
    for (profile, hosts, disturbance), by_system in settings(runs).items():
        for system in _in_order(by_system):
            those = by_system[system]
            seconds, first = _target(those), _median(those, "first_batch_seconds")
            took = "not in time" if seconds is None else f"{seconds:.0f}"
            cells = [f"`{profile}`", str(hosts), f"`{disturbance}`", f"`{system}`"]
            cells += ["" if first is None else f"{first:.0f}", took, f"{_sent(those):.0f}"]
            lines.append(
                _line([*cells, f"{max(run['load'] for run in those):.1f}", str(len(those))])
            )
    return "\n".join(lines)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def draw(runs: Sequence[Run], path: Path) -> None:
    """Draw a panel for each setting: the seconds to the target, and the bytes sent by then."""
    found = settings(runs)
    with styled(path.stem):
        figure = Figure((WIDTH_INCHES, _PANEL_INCHES * len(found)), layout="constrained")
        panels = figure.subplots(len(found), squeeze=False)[:, 0]
        for panel, (setting, by_system) in zip(panels, found.items(), strict=True):
            _draw_setting(panel, setting, by_system)
    path.write_text(to_svg(figure, path.stem), "utf-8")


def _draw_setting(panel: Axes, setting: Setting, by_system: Mapping[str, Sequence[Run]]) -> None:
    profile, hosts, disturbance = setting
    names = _in_order(by_system)[::-1]
    seconds = [_target(by_system[name]) for name in names]
    longest = max((one for one in seconds if one is not None), default=1.0)
    ours = [name.startswith("downpour") for name in names]
    panel.barh(
        names,
        [one or 0.0 for one in seconds],
        color=[LIGHT["ink"] if own else LIGHT["muted"] for own in ours],
        height=0.55,
    )
    for place, (name, one) in enumerate(zip(names, seconds, strict=True)):
        said = "not in time" if one is None else f"{one:.0f} s, {_sent(by_system[name]):.0f} MB"
        panel.annotate(said, (one or 0.0, place), xytext=(3, -3), textcoords="offset points")
    panel.set_xlim(0, 1.75 * longest)
    other = "" if disturbance == "none" else f", {disturbance}"
    panel.set_title(f"{profile}, {hosts} hosts{other}", loc="left")


def _in_order(by_system: Mapping[str, Sequence[Run]]) -> list[str]:
    """Return the systems, the soonest first; those that did not get there are last."""
    return sorted(by_system, key=lambda name: _target(by_system[name]) or math.inf)


def _target(runs: Sequence[Run]) -> float | None:
    """Return the median seconds to the target, None if half of the runs did not get there."""
    seconds = [run["target_seconds"] or math.inf for run in runs]
    middle = statistics.median(seconds)
    return None if math.isinf(middle) else middle


def _sent(runs: Sequence[Run]) -> float:
    return _median(runs, "sent_mb") or 0.0


def _median(runs: Sequence[Run], column: str) -> float | None:
    values = [float(run[column]) for run in runs if run[column] is not None]
    return statistics.median(values) if values else None
