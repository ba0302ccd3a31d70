"""What goes on right now, for people: the workers, the experiment, and a list of experiments.

Renderables of `rich` only, made for 80 columns: where a terminal is narrower, addresses give way
first. Nothing here asks a manager or prints.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from downpour.rpc.messages import (
    ExperimentSummary,
    Status,
    TaskStatus,
    WorkerStatus,
)

_ROWS_MAX = 40
_BAR_WIDTH = 12
_STYLES = {"finished": "green", "failed": "red", "cancelled": "yellow", "running": "cyan"}


def status_view(status: Status) -> RenderableType:
    """Draw the experiment in two lines, and each worker in one."""
    parts: list[RenderableType] = [_headline(status), Text("")]
    parts.append(_workers(status) if status.workers else Text("no workers yet", style="dim"))
    rest = len(status.workers) - _ROWS_MAX
    if rest > 0:
        parts.append(Text(f"… and {rest} more", style="dim"))
    return Group(*parts)


def experiments_table(experiments: Sequence[ExperimentSummary]) -> RenderableType:
    """List experiments, a line each, and below them why some came to nothing."""
    if not experiments:
        return Text("no experiments yet", style="dim")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("experiment", overflow="fold")
    table.add_column("state")
    table.add_column("epochs", justify="right", no_wrap=True)
    table.add_column("accuracy", justify="right", no_wrap=True)
    for one in experiments:
        table.add_row(
            Text(one.experiment),
            Text(one.state, style=_STYLES.get(one.state, "")),
            f"{one.rounds_done}/{one.rounds_total}",
            _percent(one.accuracy),
        )
    reasons = [
        Text.assemble((one.experiment, "bold"), f": {one.reason}")
        for one in experiments
        if one.reason
    ]
    return Group(table, Text(""), *reasons) if reasons else table


def _headline(status: Status) -> RenderableType:
    one = status.experiment
    if one is None:
        return Text("no experiment is active", style="dim")
    line = Text.assemble((one.experiment, "bold"), "  ", (one.state, _STYLES.get(one.state, "")))
    if one.state.ended:
        line.append(f"\n{one.rounds_done} of {one.rounds_total} epochs")
    else:
        line.append(f"\nepoch {min(one.rounds_done + 1, one.rounds_total)} of {one.rounds_total}")
        if status.tasks:
            done = sum(task.has_update for task in status.tasks)
            line.append(f", {done} of {len(status.tasks)} shards")
    if one.accuracy is not None:
        line.append(f", accuracy {_percent(one.accuracy)}")
    if one.reason:
        line.append(f"\n{one.reason}", style="red")
    return line


def _workers(status: Status) -> Table:
    tasks = {task.worker: task for task in status.tasks if task.state == "running"}
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("worker", no_wrap=True)
    table.add_column("at")  # the only one that may shrink
    table.add_column("doing", no_wrap=True)
    table.add_column("", no_wrap=True)
    for header in ("since\ns", "cpu by\nothers", "tasks\ndone"):
        table.add_column(header, justify="right", no_wrap=True)
    for worker in status.workers[:_ROWS_MAX]:
        table.add_row(*_worker_cells(worker, tasks.get(worker.worker)))
    return table


def _worker_cells(worker: WorkerStatus, task: TaskStatus | None) -> list[RenderableType]:
    system = worker.system
    running = worker.running
    return [
        Text(worker.worker),
        Text(worker.address, style="dim", no_wrap=True, overflow="ellipsis"),
        Text(f"shard {running.shard}" if running else worker.state),
        ProgressBar(task.steps_total or 1, task.steps_done, width=_BAR_WIDTH) if task else "",
        f"{task.elapsed_seconds:.1f}" if task else "",
        f"{system.cpu_others:.0%}" if system else "",
        str(worker.tasks_done),
    ]


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.2%}"
