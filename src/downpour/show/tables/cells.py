"""Cells of tables in a terminal, and the console that shows them.

Displays pass each foreign text through `one_line`, which keeps tables straight. This is the safety
net below them: rich itself removes only a few control characters, and lets an escape pass.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from downpour.base.states import LOSS
from downpour.host.text import one_line
from downpour.record.result_parts import Measure, number
from downpour.record.study_result import label

STATE_STYLES = {"finished": "green", "failed": "red", "cancelled": "yellow"}
NOTHING = "-"
Column = tuple[str, Sequence[str | None]]


def shortened(value: Any) -> str:
    """Format a value with two significant digits: 0.012, 1.5e-5."""
    if not isinstance(value, float):
        return label(value)
    return re.sub(r"e([+-])0*", lambda e: "e" + e[1].strip("+"), f"{value:.2g}")


def percents(shares: Sequence[float | None], decimals: int = 2) -> list[str | None]:
    """Write shares in 0..1 in percent."""
    return [None if share is None else f"{100 * share:.{decimals}f}" for share in shares]


def losses(values: Sequence[float | None]) -> list[str | None]:
    """Write losses with four decimals, or large ones with four digits."""
    return [None if v is None else number(v) for v in values]


def measurements(measure: Measure, values: Sequence[float | None]) -> Column:
    """Return a column of a metric or of the loss, with its header."""
    if measure.name == LOSS:
        return "test\nloss", losses(values)
    name = one_line(measure.name)  # on one line, as the task spells it, for readers who search
    if measure.is_share:
        return f"{name}\n%", percents(values)
    return name, losses(values)


def seconds(values: Sequence[float | None]) -> list[str | None]:
    """Write the durations of one column with the same decimals, as many as are useful."""
    longest = max((value for value in values if value is not None), default=0.0)
    decimals = 3 if longest < 1 else 2 if longest < 100 else 1
    return [None if value is None else f"{value:.{decimals}f}" for value in values]


def text_table(
    columns: Sequence[Column],
    *,
    title: str | None = None,
    names: Container[str] = (),
    is_tight: bool = False,
) -> Table:
    """Lay out columns of text; those of `names`, and the first with names, are left-aligned."""
    padding = (0, 0) if is_tight else (0, 1)
    look: dict[str, Any] = {"title": title, "title_justify": "left", "header_style": "bold"}
    table = Table(box=box.SIMPLE_HEAD, padding=padding, pad_edge=False, **look)
    shown = [(header, cells) for header, cells in columns if any(c is not None for c in cells)]
    for place, (header, cells) in enumerate(shown):
        is_first = place == 0 and not all(cell and cell.isdigit() for cell in cells)
        whole = any(cell and "±" in cell for cell in cells)
        table.add_column(
            header,
            justify="left" if is_first or header in names else "right",
            no_wrap=whole,
            overflow="fold",
            # keeps a name such as mean_abs_error whole
            min_width=max(map(len, header.split("\n"))),
        )
    for row in zip(*(cells for _, cells in shown), strict=True):
        table.add_row(*(Text(NOTHING if cell is None else one_line(cell)) for cell in row))
    return table


class SafeConsole(Console):
    """A console that shows the control characters in its output, except line breaks."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render into segments; the controls among them are rich's own."""
        for segment in super().render(renderable, options):
            text = segment.text
            if segment.control or text.isprintable() or text == "\n":
                yield segment
            else:
                yield segment._replace(text="\n".join(map(one_line, text.split("\n"))))
