"""Lets a notebook show a result as `downpour results` does; importing this module is enough."""

from __future__ import annotations

import io

from downpour.experiments.reading import Result
from downpour.experiments.reading.notebook import html_of
from downpour.experiments.tables.console import SafeConsole
from downpour.experiments.tables.terminal_tables import result_table

__all__ = ["Result"]

_COLUMNS = 100


@html_of.register
def _as_table(result: Result) -> str:
    console = SafeConsole(file=io.StringIO(), record=True, width=_COLUMNS, force_jupyter=False)
    console.print(result_table(result))
    return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")
