"""Tables of a grid and of a search for the terminal; each fits into 80 columns."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from downpour.experiments.reading import study_result as study
from downpour.experiments.reading.search_result import SearchResult
from downpour.experiments.tables import report_tables
from downpour.experiments.tables.cells import (
    Column,
    measurements,
    shortened,
    text_table,
)
from downpour.host.text import one_line

_MARKS = {"pruned": "pruned ", "failed": "failed "}
_ROOMY_FIELDS = 4


def study_table(subgrid: study.SubgridResult) -> RenderableType:
    """Show for each setting of a subgrid: its first metric and seconds of training."""
    table = report_tables.outcomes(subgrid)
    first = report_tables.measured_by(subgrid)[0]
    wanted = {*subgrid.axes, "trials", first.key, "train_seconds"}
    texts = table.texts()
    columns: list[Column] = [
        (column.header, [row[place] for row in texts])
        for place, column in enumerate(table.columns)
        if column.key in wanted
    ]
    return Group(Text(one_line(subgrid.name), style="bold"), text_table(columns))


def search_table(search: SearchResult) -> RenderableType:
    """Show the runs of a search: their values, how good they were, and after how many epochs."""
    runs, best = search.runs, search.best
    columns: list[Column] = [("run", [str(run.number) for run in runs])]
    for field in search.fields:
        values = [shortened(run.values[field.name]) for run in runs]
        columns.append((field.words.replace(" ", "\n"), values))
    marks = ["best " if run is best else _MARKS.get(run.state, "") for run in runs]
    epochs = [f"{mark}{len(r.epoch_values)}" for mark, r in zip(marks, runs, strict=True)]
    columns += [
        measurements(search.measure, [run.value for run in runs]),
        ("epochs", epochs),
    ]
    is_tight = len(search.fields) > _ROOMY_FIELDS
    return Group(Text(one_line(search.name), style="bold"), text_table(columns, is_tight=is_tight))
