"""Progress bars of one experiment: finished epochs, and the tasks of the current one.

We draw on a terminal, within 80 columns, and in a notebook. A file or a pipe gets lines, if any.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from downpour.base.states import ExperimentState, TaskState
from downpour.network.rpc.messages import ExperimentSummary, Status, TaskStatus
from downpour.record.result_parts import in_words
from downpour.show.tables.live import besides_training

LINE_SECONDS = 30.0
"""How often a file gets a line: a log of an hour has 120, and a test's run of seconds none."""
_LONG_SECONDS = 5.0
"""With shorter tasks, the bars' words would change all the time."""


class ProgressDisplay:
    """A context manager that draws what `show` gets, on a terminal or in a notebook.

    Callers may add bars to `bars`; the field `left` of such a bar says how long it takes, in words.
    If the output is a file or a pipe, `show` writes a line after a round instead, but waits at
    least `line_seconds` between two lines. None writes no lines.
    """

    def __init__(self, console: Console, *, line_seconds: float | None = None) -> None:
        self._in_notebook = console.is_jupyter
        shown = console.is_terminal or self._in_notebook
        self._lines = None if shown or line_seconds is None else _Lines(console, line_seconds)
        self.bars = Progress(*_columns(), console=console, disable=not shown, transient=True)
        self._epochs = self.bars.add_task("starting workers", total=None, count="")
        self._shards = self.bars.add_task("", total=None, visible=False, count="")

    def __enter__(self) -> Self:
        if self._in_notebook:
            self._cell = _Cell(self.bars)
        else:
            self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._in_notebook:
            self._cell.clear()
        else:
            self.bars.stop()

    def again(self, description: str) -> None:
        """Begin from the start, with another experiment."""
        self.bars.reset(self._epochs, description=description, total=None, count="")
        self.bars.reset(self._shards, visible=False, total=None)

    def show(self, status: Status) -> None:
        """Draw the experiment as it is now."""
        experiment = status.experiment
        if experiment is None:
            return
        running = experiment.state is ExperimentState.RUNNING
        total = experiment.rounds_total
        tasks_done = sum(1.0 if task.has_update else task.share for task in status.tasks)
        # Only the round, or else the epoch, because bars have a narrow column for it.
        where = experiment.where.rpartition(", ")[2].partition(" of ")[0]
        done = float(experiment.rounds_done)
        if running and status.tasks:  # a round is not done until it is aggregated
            done += min(0.99, tasks_done / len(status.tasks))
        self.bars.update(
            self._epochs,
            description=_headline(experiment, workers=len(status.workers)),
            total=total if running or experiment.state.ended else None,
            completed=min(done, total),
            count="/".join(map(str, experiment.epochs)),
        )
        self.bars.update(
            self._shards,
            description=_long_without_step(status.tasks) or f"shards of {where}",
            total=len(status.tasks) or None,
            completed=tasks_done,
            count=f"{sum(task.has_update for task in status.tasks)}/{len(status.tasks)}",
            visible=running and bool(status.tasks),
        )
        if self._in_notebook:
            self._cell.draw()
        if self._lines is not None:
            self._lines.show(experiment, workers=len(status.workers))


class _Lines:
    """Lines about finished rounds, for users who read the output later or in another window."""

    def __init__(self, console: Console, every_seconds: float) -> None:
        self._console, self._every_seconds = console, every_seconds
        self._told_rounds, self._told_at_seconds = 0, time.monotonic()

    def show(self, experiment: ExperimentSummary, workers: int) -> None:
        """Write a line, if a round has ended since the last one and it is time for the next."""
        passed_seconds = time.monotonic() - self._told_at_seconds
        new = experiment.rounds_done > self._told_rounds and not experiment.state.ended
        if new and passed_seconds >= self._every_seconds:
            self._told_rounds = experiment.rounds_done
            self._told_at_seconds = time.monotonic()
            done = "/".join(map(str, experiment.epochs))
            self._console.print(f"{done} {_headline(experiment, workers)}", highlight=False)


class _Cell:
    """Bars in the output of a notebook's cell, which we redraw in place.

    Rich's own method needs ipywidgets, which many notebooks lack, and warns at each drawing.
    """

    def __init__(self, bars: Progress) -> None:
        from IPython.display import display

        self._bars = bars
        show: Any = display  # IPython has types, but not for this function
        self._handle = show(bars, display_id=True)

    def draw(self) -> None:
        self._handle.update(self._bars)

    def clear(self) -> None:
        self._handle.update(Text())


class _TimeLeft(TimeRemainingColumn):
    """The time left: the bar's own field `left` if it has one, else an estimate by its speed."""

    def render(self, task: Task) -> Text:
        left = task.fields.get("left")
        return super().render(task) if left is None else Text(left, style="progress.remaining")


def _columns() -> tuple[ProgressColumn, ...]:
    return (
        TextColumn("{task.description:<24}", markup=False),
        BarColumn(bar_width=22),
        TextColumn("{task.fields[count]:>9}", markup=False),
        TimeElapsedColumn(),
        TextColumn("left"),
        _TimeLeft(),
    )


def _headline(experiment: ExperimentSummary, workers: int) -> str:
    if experiment.state is ExperimentState.WAITING:
        return "waiting for its turn"
    if experiment.state is ExperimentState.PREPARING:
        return "preparing the dataset"
    if workers == 0:
        return "waiting for workers"
    measured = in_words(experiment.measured, experiment.loss, experiment.part)
    return f"epochs, {measured}" if measured else "epochs"


def _long_without_step(tasks: Sequence[TaskStatus]) -> str:
    """Say what all workers do besides training, unless their tasks are short."""
    running = [task for task in tasks if task.state is TaskState.RUNNING]
    is_long = any(task.elapsed_seconds >= _LONG_SECONDS for task in running)
    return besides_training(running) if is_long else ""
