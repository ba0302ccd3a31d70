"""What goes on right now, for people: the workers, the experiment, and a list of experiments."""

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
_STYLES = {"finished": "green", "failed": "red", "cancelled": "yellow", "running": "cyan"}


def status_view(status: Status) -> RenderableType:
    """Draw the experiment in a line, and each worker in one."""
    tasks = {task.worker: task for task in status.tasks if task.state == "running"}
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for header, right in (("worker", False), ("at", False), ("doing", False), ("", False)):
        table.add_column(header, justify="right" if right else "left", no_wrap=True)
    table.add_column("seconds", justify="right")
    table.add_column("cpu by others", justify="right")
    table.add_column("tasks done", justify="right")
    for worker in status.workers[:_ROWS_MAX]:
        table.add_row(*_worker_cells(worker, tasks.get(worker.worker)))
    rest = len(status.workers) - _ROWS_MAX
    more = Text(f"… and {rest} workers more", style="dim") if rest > 0 else Text("")
    none = Text("no worker has registered yet", style="dim")
    return Group(_headline(status), Text(""), table if status.workers else none, more)


def experiments_table(experiments: Sequence[ExperimentSummary]) -> RenderableType:
    """List experiments, a line each."""
    if not experiments:
        return Text("no experiments yet", style="dim")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("experiment", no_wrap=True)
    table.add_column("state")
    table.add_column("epochs", justify="right")
    table.add_column("accuracy", justify="right")
    table.add_column("reason")
    for one in experiments:
        table.add_row(
            one.experiment,
            Text(one.state, style=_STYLES.get(one.state, "")),
            f"{one.rounds_done}/{one.rounds_total}",
            _percent(one.accuracy),
            one.reason or "",
        )
    return table


def _headline(status: Status) -> RenderableType:
    one = status.experiment
    if one is None:
        return Text("no experiment is active", style="dim")
    line = Text.assemble(
        (one.experiment, "bold"),
        "  ",
        (one.state, _STYLES.get(one.state, "")),
        f"  epoch {min(one.rounds_done + 1, one.rounds_total)} of {one.rounds_total}",
        f"  accuracy {_percent(one.accuracy)}" if one.accuracy is not None else "",
    )
    published = sum(task.state in {"published", "applied"} for task in status.tasks)
    if status.tasks:
        line.append(f"  {published} of {len(status.tasks)} shards")
    if one.reason:
        line.append(f"\n{one.reason}", style="red")
    return line


def _worker_cells(worker: WorkerStatus, task: TaskStatus | None) -> list[RenderableType]:
    system = worker.system
    running = worker.running
    return [
        worker.worker,
        Text(worker.address, style="dim"),
        f"shard {running.shard}" if running else Text(worker.state, style="dim"),
        ProgressBar(task.steps_total or 1, task.steps_done, width=24) if task else "",
        f"{task.elapsed_seconds:.1f}" if task else "",
        f"{system.cpu_others:.0%}" if system else "",
        str(worker.tasks_done),
    ]


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.2%}"
