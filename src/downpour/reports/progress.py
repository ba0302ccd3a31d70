"""Progress bars of one experiment: how many epochs are done, and how far this one has come."""

from __future__ import annotations

from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from downpour.rpc.messages import ExperimentState, ExperimentSummary, Status, TaskStatus


class ProgressDisplay:
    """A context manager that draws what `show` is given; silent where nobody looks."""

    def __init__(self, console: Console) -> None:
        self._bars = Progress(
            *_columns(), console=console, disable=not console.is_terminal, transient=True
        )
        self._epochs = self._bars.add_task("starting workers", total=None)
        self._shards = self._bars.add_task("", total=None, visible=False)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def show(self, status: Status) -> None:
        """Draw the experiment as it is now."""
        experiment = status.experiment
        if experiment is None:
            return
        running = experiment.state is ExperimentState.RUNNING
        done = experiment.rounds_done + (_part_done(status.tasks) if running else 0.0)
        self._bars.update(
            self._epochs,
            description=_headline(experiment),
            total=experiment.rounds_total,
            completed=min(done, experiment.rounds_total),
        )
        self._bars.update(
            self._shards,
            description=f"shards of epoch {experiment.rounds_done + 1}",
            total=len(status.tasks) or None,
            completed=sum(_task_done(task) for task in status.tasks),
            visible=running and bool(status.tasks),
        )


def _columns() -> tuple[ProgressColumn, ...]:
    return (
        TextColumn("{task.description:<28}"),
        BarColumn(bar_width=32),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )


def _headline(experiment: ExperimentSummary) -> str:
    if experiment.state is ExperimentState.PREPARING:
        return "preparing the dataset"
    if experiment.accuracy is None:
        return "epochs"
    return f"epochs, accuracy {experiment.accuracy:.2%}"


def _part_done(tasks: tuple[TaskStatus, ...]) -> float:
    """Return the part of the current epoch that is done, 0..1, below 1 until it is aggregated."""
    return min(0.99, sum(_task_done(task) for task in tasks) / len(tasks)) if tasks else 0.0


def _task_done(task: TaskStatus) -> float:
    if task.state in {"published", "applied"}:
        return 1.0
    return task.steps_done / task.steps_total if task.steps_total else 0.0
