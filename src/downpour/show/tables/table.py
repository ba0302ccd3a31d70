"""A table as text, Markdown, CSV and JSON: columns, and cells that may hold several values."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from downpour.record.result_parts import Estimate

Cell = str | int | float | Estimate | None
NOTHING = "–"


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its key for programs, its header for people, its decimals."""

    key: str
    header: str
    decimals: int | None = None

    @property
    def is_text(self) -> bool:
        """Whether it holds names rather than measurements."""
        return self.decimals is None


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under columns; `name` is the name of its files, `title` the one that people read.

    `subgrid` is the subgrid that the table is about, or none.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    subgrid: str = ""

    def texts(self) -> list[list[str]]:
        """Write every cell for people."""
        return [
            [written(cell, column) for cell, column in zip(row, self.columns, strict=True)]
            for row in self.rows
        ]

    def to_markdown(self) -> str:
        """Write the table for a page of Markdown, with right-aligned numbers."""
        rows = [[text.replace("|", "\\|") for text in row] for row in self.texts()]
        heads = [column.header for column in self.columns]
        rules = ["---" if column.is_text else "--:" for column in self.columns]
        lines = [f"| {' | '.join(row)} |" for row in [heads, rules, *rows]]
        return f"**{self.title}**\n\n" + "\n".join(lines) + "\n"

    def to_csv(self) -> str:
        """Write the table as CSV; an estimate takes a column for its mean and one for its width."""
        wide = {
            place
            for place in range(len(self.columns))
            if any(isinstance(row[place], Estimate) for row in self.rows)
        }
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(
            _spread((column.key for column in self.columns), wide, lambda key: [key, f"{key}_ci95"])
        )
        for row in self.rows:
            writer.writerow(_spread(row, wide, _parts))
        return text.getvalue()

    def to_json(self) -> str:
        """Write the table as a list of objects, one per row."""
        rows = [
            {column.key: _plain(cell) for column, cell in zip(self.columns, row, strict=True)}
            for row in self.rows
        ]
        return json.dumps(rows, indent=2, allow_nan=False) + "\n"


def written(cell: Cell, column: Column) -> str:
    """Write a cell for people: "94.22 ± 0.12"."""
    match cell:
        case None:
            return NOTHING
        case Estimate(mean, None):
            return f"{mean:.{column.decimals or 0}f}"
        case Estimate(mean, 0) if not column.decimals:  # a count that never varied
            return f"{mean:.0f}"
        case Estimate(mean, half_width):
            return f"{mean:.{column.decimals or 0}f} ± {half_width:.{column.decimals or 0}f}"
        case float():
            return f"{cell:.{column.decimals or 0}f}"
        case _:
            return str(cell)


def _parts(cell: Cell) -> list[Cell]:
    return [cell.mean, cell.half_width] if isinstance(cell, Estimate) else [cell, None]


def _spread(cells: Iterable[Any], wide: set[int], parts: Callable[[Any], list[Any]]) -> list[Any]:
    """Flatten a row: two fields if the column has estimates, otherwise one."""
    flat: list[Any] = []
    for place, cell in enumerate(cells):
        flat += parts(cell) if place in wide else [cell]
    return flat


def _plain(cell: Cell) -> Any:
    if isinstance(cell, Estimate):
        return {"mean": cell.mean, "ci95": cell.half_width, "trials": cell.count}
    return cell
