"""Lets a notebook show a result as tables and figures; just import this module."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from downpour.base.errors import SpecError, require
from downpour.record import Result
from downpour.record.result import DRAWINGS, NotebookPage
from downpour.show.figures.result_figure import result_figure
from downpour.show.figures.timeline_figure import timeline_figure
from downpour.show.tables.terminal_tables import SafeConsole, result_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Result"]

_COLUMNS = 100
_AS_TYPED = (
    "white-space: pre; overflow-x: auto; line-height: normal; "
    "font-family: Menlo, 'DejaVu Sans Mono', Consolas, 'Courier New', monospace"
)
"""Notebooks break long lines and space them out, which takes the columns of a table apart."""


def _as_table(result: Result) -> str:
    console = SafeConsole(file=io.StringIO(), record=True, width=_COLUMNS, force_jupyter=False)
    console.print(result_table(result))
    code_format = f'<pre style="{_AS_TYPED}">{{code}}</pre>'
    return console.export_html(inline_styles=True, code_format=code_format)


def _plot(result: Result) -> Figure:
    require("Result.plot", "report")
    return result_figure(result)


def _timeline(result: Result) -> Figure:
    require("Result.timeline", "report")
    return timeline_figure(result.spans, result.disturbed_seconds)


def _page(result: Result) -> NotebookPage:
    from downpour.show.dashboard.page_data import static_page

    if result.folder is None:
        accepted = "needs the experiment's folder; read the result with Result.read(FOLDER)"
        raise SpecError("page", result.experiment, accepted)
    return NotebookPage(static_page([result.folder], result.name))


DRAWINGS.update(html=_as_table, plot=_plot, timeline=_timeline, page=_page)
