"""A figure of accuracy: a line for each act, along epochs or along seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from downpour.experiments.figures.style import WIDTH_INCHES, keep_per_cent, series, styled
from downpour.files.records.attempt_lines import AssignedLine
from downpour.files.records.record_lines import EvaluatedLine
from downpour.files.records.view import Dated

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Points = Sequence[tuple[float, float]]


def lines_figure(lines: Mapping[str, Points], along: str) -> Figure:
    """Draw accuracy in percent along epochs or seconds, a line for each title."""
    from matplotlib.figure import Figure

    with styled():
        figure = Figure(figsize=(WIDTH_INCHES, 3.0), layout="constrained")
        axis = figure.subplots()
        for place, (title, points) in enumerate(lines.items()):
            xs, ys = [x for x, _ in points], [y for _, y in points]
            axis.plot(xs, ys, label=title, clip_on=False, **series(place))
        axis.set_xlabel(along)
        axis.set_ylabel("test accuracy, %")
        axis.set_xlim(left=0)
        keep_per_cent(axis)
        figure.legend(loc="outside lower center", ncols=len(lines))
    return figure


def accuracy_along_seconds(record: Sequence[Dated]) -> Points:
    """Return accuracy in percent at each evaluation, in seconds since the first assignment."""
    begun = next((at for at, line in record if isinstance(line, AssignedLine)), 0.0)
    return [
        (at - begun, 100 * line.metrics["accuracy"])
        for at, line in record
        if isinstance(line, EvaluatedLine) and "accuracy" in line.metrics
    ]
