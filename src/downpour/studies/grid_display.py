"""How far a grid is, for people: bars on a terminal, a line a cell in a log, and the time left."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Self

from rich.console import Console

from downpour.reports.progress import ProgressDisplay
from downpour.rpc.messages import Status
from downpour.studies.grid import Cell
from downpour.studies.summary import Summary

_MINUTE = 60.0
_HOUR = 3600.0


class GridDisplay:
    """A context manager that watches a grid being run; bars are drawn on a terminal only.

    Args:
        console: Where the bars go.
        say: Takes a line for each cell that has ended.
        cells: How many cells the grid has.
        finished: The cells that have finished before.
    """

    def __init__(
        self,
        console: Console,
        say: Callable[[str], None],
        cells: Mapping[str, Cell],
        finished: Mapping[str, Summary],
    ) -> None:
        self._display = ProgressDisplay(console)
        self._say = say
        self._cells = cells
        self._finished = dict(finished)
        self._missing: list[Cell] = []
        self._expected: float | None = None
        self._began = 0.0
        self._bar = self._display.bars.add_task("cells", total=len(cells), count="", left="")

    def __enter__(self) -> Self:
        self._display.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._display.__exit__()

    def begins(self, cell: Cell, missing: Sequence[Cell]) -> None:
        """Show a cell's own bars from the start."""
        self._missing = list(missing)
        self._expected = seconds_left(self._cells, self._finished, missing)
        self._began = time.monotonic()
        self._display.again(f"{cell.spec.split}, {cell.spec.aggregate}, seed {cell.spec.seed}")
        self._draw()

    def shows(self, status: Status) -> None:
        """Draw the cell as it is now."""
        self._display.show(status)
        self._draw()

    def ends(self, cell: Cell, summary: Summary) -> None:
        """Tell what the cell came to."""
        self._missing = self._missing[1:]
        if summary.is_finished:
            self._finished[cell.id] = summary
        done, total = len(self._finished), len(self._cells)
        accuracy = "" if summary.accuracy is None else f" accuracy {summary.accuracy:.2%}"
        reason = f": {summary.reason}" if summary.reason else ""
        rest = seconds_left(self._cells, self._finished, self._missing)
        left = f", {about(rest)} left" if self._missing else ""
        took = spoken(summary.wall_seconds)
        self._say(f"{done}/{total} {cell.id} {summary.state}{accuracy}{reason} in {took}{left}")

    def _draw(self) -> None:
        done, left = len(self._finished), self._expected
        if left is not None:
            left = max(0.0, left - (time.monotonic() - self._began))
        count = f"{done}/{len(self._cells)}"
        self._display.bars.update(self._bar, completed=done, count=count, left=about(left))


def seconds_left(
    cells: Mapping[str, Cell], finished: Mapping[str, Summary], missing: Sequence[Cell]
) -> float | None:
    """Say how long the missing cells will take: as other trials of the same, or else as any.

    None before the first has finished.
    """
    known: dict[str, list[float]] = {}
    for cell_id, summary in finished.items():
        known.setdefault(_setting(cells[cell_id]), []).append(summary.wall_seconds)
    if missing and not known:
        return None
    usual = [fmean(fmean(seconds) for seconds in known.values())] if known else []
    return sum(fmean(known.get(_setting(cell), usual)) for cell in missing)


def about(seconds: float | None) -> str:
    """Write an estimate for people."""
    return "unknown time" if seconds is None else f"about {spoken(seconds)}"


def spoken(seconds: float) -> str:
    """Write a duration for people: "43 s", "12 min", "3 h 20 min"."""
    if seconds < _MINUTE:
        return f"{seconds:.0f} s"
    if seconds < _HOUR:
        return f"{seconds / _MINUTE:.0f} min"
    hours, minutes = divmod(round(seconds / _MINUTE), 60)
    return f"{hours} h {minutes} min"


def _setting(cell: Cell) -> str:
    """Tell apart what is run, but not its trials."""
    return cell.spec.replace(seed=0).to_toml() + str(cell.workers)
