"""The current status for people: the workers, the experiment, its progress, and a list of them.

Everything here is made for 80 columns, and asks no manager. If a table's columns do not all fit, we
leave out whole columns, beginning with addresses.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from rich.console import Console, ConsoleOptions, Group, JustifyMethod, RenderableType, RenderResult
from rich.measure import Measurement
from rich.progress import (
    BarColumn,
    Progress,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from downpour.base.errors import one_line, size_in_words, spoken
from downpour.base.states import ExperimentState, TaskState
from downpour.network.rpc.messages import ExperimentSummary, Status, TaskStatus, WorkerStatus
from downpour.record.result_parts import first_of, idle_cards, in_words, mixture_now
from downpour.record.stored_experiments import submission_seconds

_ROWS_MAX = 40
_DECISIONS_MAX = 5
_DIFFERENCES_MAX = 10
_SLOW = 1.5
"""We mark a worker as slow if it takes this many times the median time per sample."""
_HARDLY = 0.005
"""We show a smaller share of the time as nothing."""
_BAR_WIDTH = 12
_UNBOUNDED = 10_000
_STYLES = {"finished": "green", "failed": "red", "cancelled": "yellow", "running": "cyan"}
_STYLES["paused"] = "yellow"


def status_view(status: Status) -> RenderableType:
    """Draw the experiment in two lines, and one line for each worker and recent decision."""
    parts: list[RenderableType] = [_headline(status), Text("")]
    if status.pid:
        manager = one_line(f"manager: process {status.pid} of {status.hostname}")
        parts.append(Text(manager, style="dim"))
    # Without a manager, the status comes from a record, which does not know who works now.
    recorded = status.experiment is not None and not status.pid
    absence = "its manager does not answer here" if recorded else "no workers now"
    workers = _Fitting(partial(_workers, status), _DISPENSABLE)
    parts.append(workers if status.workers else Text(absence, style="dim"))
    rest = len(status.workers) - _ROWS_MAX
    if rest > 0:
        parts.append(Text(f"… and {rest} more", style="dim"))
    if mixture := mixture_now(status):
        parts += [Text(""), Text(one_line(mixture), style="yellow")]
    if idle := idle_cards(status):
        parts.append(Text(idle, style="yellow"))
    unfit = ((w.worker, w.unfit_because) for w in status.workers)
    differs = [f"{worker} gets no task: {reason}" for worker, reason in unfit if reason]
    differs += [f"{w.worker} has {what}" for w in status.workers for what in w.differs]
    for line in differs[:_DIFFERENCES_MAX]:
        parts.append(Text(one_line(line), style="yellow"))
    if status.queue:
        parts += [Text(""), Text("queue", style="bold"), *map(_waiting, status.queue)]
    if status.decisions:
        parts += [Text(""), Text("last decisions", style="bold")]
        for decision in status.decisions[-_DECISIONS_MAX:]:
            parts.append(Text(one_line(decision), no_wrap=True, overflow="ellipsis"))
    return Group(*parts)


def experiments_table(experiments: Sequence[ExperimentSummary]) -> RenderableType:
    """List experiments, one per line, and below them why experiments ended early."""
    if not experiments:
        return Text("no experiments yet", style="dim")
    table = _Fitting(partial(_experiments, experiments), (*_MORE,))
    reasons = [
        Text.assemble((one_line(each.experiment), "bold"), f": {one_line(each.reason)}")
        for each in experiments
        if each.reason
    ]
    return Group(table, Text(""), *reasons) if reasons else table


def _experiments(experiments: Sequence[ExperimentSummary], without: Sequence[str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("experiment", overflow="fold")
    table.add_column("state")
    table.add_column("epochs", justify="right", no_wrap=True)
    first = [first_of(each.measured, each.loss) for each in experiments]
    names = {measured[0].words for measured in first if measured} or {"accuracy"}
    alike = len(names) == 1
    table.add_column(names.pop() if alike else "measured", justify="right", no_wrap=True)
    left = {header: cell for header, cell in _MORE.items() if header not in without}
    more = {header: cell for header, cell in left.items() if any(map(cell, experiments))}
    for header in more:
        table.add_column(header, no_wrap=True)
    for each, measured in zip(experiments, first, strict=True):
        value = measured[0].text(measured[1]) if measured else "–"
        table.add_row(
            Text(one_line(each.experiment)),
            Text(each.condition, style=_STYLES.get(each.condition, "")),
            "/".join(map(str, each.epochs)),
            value if alike or measured is None else f"{measured[0].words} {value}",
            *(Text(cell(each)) for cell in more.values()),
        )
    return table


def _when(experiment: ExperimentSummary) -> str:
    seconds = submission_seconds(experiment.experiment)
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds)) if seconds else ""


_MORE: Mapping[str, Callable[[ExperimentSummary], str]] = {
    "submitted": _when,
    "by": lambda each: one_line(each.owner),
    "priority": lambda each: "" if each.state.ended else str(each.priority or ""),
}


def _waiting(experiment: ExperimentSummary) -> Text:
    condition = experiment.condition
    if condition == ExperimentState.RUNNING:
        condition = f"running beside, {experiment.where}"
    why = f"{experiment.experiment}: {experiment.reason or condition}"
    return Text(one_line(f"{why}, priority {experiment.priority}" if experiment.priority else why))


def _headline(status: Status) -> RenderableType:
    experiment = status.experiment
    if experiment is None:
        return Text("no experiment is active; `downpour list` shows all", style="dim")
    state = experiment.condition, _STYLES.get(experiment.condition, "")
    line = Text.assemble((one_line(experiment.experiment), "bold"), "  ", state)
    if experiment.state.ended:
        line.append("\n{} of {} epochs".format(*experiment.epochs))
    else:
        line.append(f"\n{experiment.where}")
        if status.tasks:
            done = sum(task.has_update for task in status.tasks)
            line.append(f", {done} of {len(status.tasks)} shards")
    if measured := in_words(experiment.measured, experiment.loss, experiment.part):
        line.append(f", {measured}")
    if left := time_left(experiment.left_seconds):
        line.append(f", {left}")
    if experiment.reason:
        line.append(f"\n{one_line(experiment.reason)}", style="red")
    return line


def time_left(left_seconds: Sequence[float]) -> str:
    """Write the time left and its range, as "about 12 min left (10 to 15)"; "" if unknown."""
    if not left_seconds:
        return ""
    low, middle, high = map(spoken, left_seconds)
    alike = {text.lstrip("0123456789") for text in (low, middle, high)}
    if len(alike) == 1 and " h" not in middle:
        low, high = low.partition(" ")[0], high.partition(" ")[0]
    whole = f"about {middle} left"
    return f"{whole} ({low} to {high})" if low != high else whole


@dataclass(frozen=True, slots=True)
class _Row:
    """A worker, and its current task of the experiment shown."""

    worker: WorkerStatus
    task: TaskStatus | None
    experiment: str

    @property
    def slowness(self) -> float | None:
        """The slowness by the forecast of its task or, without one, by its past."""
        predicted = self.task.slowness if self.task else None
        return self.worker.slowness if predicted is None else predicted


@dataclass(frozen=True, slots=True)
class _Fitting:
    """A table without the columns that do not fit; `make` leaves out the named ones."""

    make: Callable[[Sequence[str]], Table]
    dispensable: Sequence[str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Give up one column after the other until the rest fits."""
        # On a narrower console, rich would return its width, and every table would seem to fit.
        unbounded = options.update_width(_UNBOUNDED)
        for count in range(len(self.dispensable) + 1):
            table = self.make(self.dispensable[:count])
            if Measurement.get(console, unbounded, table).maximum <= options.max_width:
                break
        yield table


def _workers(status: Status, without: Sequence[str]) -> Table:
    """Lay out the columns, leaving out `without` and columns without values."""
    tasks = {task.worker: task for task in status.tasks if task.state is TaskState.RUNNING}
    shown = status.experiment.experiment if status.experiment else ""
    workers = [_Row(one, tasks.get(one.worker), shown) for one in status.workers[:_ROWS_MAX]]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    rows: list[list[RenderableType]] = [[] for _ in workers]
    for header, (justify, cell) in _COLUMNS.items():
        cells = [cell(row) for row in workers]
        if header in without or not any(cells):
            continue
        table.add_column(header, justify=justify, no_wrap=True)
        for row, renderable in zip(rows, cells, strict=True):
            row.append(renderable)
    for row in rows:
        table.add_row(*row)
    return table


def _predicted(row: _Row) -> RenderableType:
    """Write the likely value, and the range that holds it in eight of ten cases."""
    forecast = row.task.predicted if row.task else None
    if forecast is None:
        return ""
    decimals = 0 if forecast.q90 >= 10 else 1
    band = f"({forecast.q10:.{decimals}f}–{forecast.q90:.{decimals}f})"
    return f"{forecast.q50:.1f} {band}"


def _pace(row: _Row) -> RenderableType:
    if row.slowness is None:
        return ""
    if row.slowness < _SLOW:
        return f"{row.slowness:.1f}"
    return Text(f"slow {row.slowness:.1f}", style="bold red")


def _saved(row: _Row) -> RenderableType:
    """Say what share of a round's time the worker saves, or would cost if it did not stand by."""
    saves = row.worker.saves
    if saves is None:
        return ""
    costs, share = saves < -_HARDLY, f"{abs(saves):.0%}"
    if row.worker.stands_by:
        return f"would cost {share}" if costs else "stands by"
    return Text(f"costs {share}", style="bold red") if costs else f"saves {share}"


def _process(row: _Row) -> RenderableType:
    """Name the process, so that a user can find it or end it."""
    worker = row.worker
    return Text(one_line(f"{worker.pid} of {worker.hostname}")) if worker.pid else ""


def _doing(row: _Row) -> str:
    attempt = row.worker.running
    if attempt is None:
        return row.worker.state
    end = one_line(attempt.experiment).rpartition("-")[2]
    return f"shard {attempt.shard}{f' of …{end}' if attempt.experiment != row.experiment else ''}"


def _course(row: _Row) -> RenderableType:
    task = row.task
    if task is None:
        return ""
    bar = ProgressBar(task.steps_total or 1, task.steps_done, width=_BAR_WIDTH)
    return besides_training([task]) or bar


def besides_training(tasks: Sequence[TaskStatus]) -> str:
    """Say what the workers of tasks do if none of them trains, and all of them do the same."""
    # Between two steps, a worker may save a snapshot.
    phases = {"saving" if t.phase == "training" and t.moved_bytes else t.phase for t in tasks}
    if len(phases) != 1 or "training" in phases:
        return ""
    (phase,) = phases
    moved_bytes = sum(task.moved_bytes for task in tasks)
    whole_bytes = sum(task.update_bytes for task in tasks) if phase == "publishing" else 0
    return f"{phase} {size_in_words(moved_bytes, whole_bytes)}" if moved_bytes else phase


_COLUMNS: dict[str, tuple[JustifyMethod, Callable[[_Row], RenderableType]]] = {
    "worker": ("left", lambda row: Text(one_line(row.worker.worker))),
    "labels": ("left", lambda row: one_line(" ".join(row.worker.labels))),
    "process": ("left", _process),
    "device": ("left", lambda row: one_line(row.worker.device)),
    "at": ("left", lambda row: Text(one_line(row.worker.address), style="dim")),
    "doing": (
        "left",
        lambda row: Text(_doing(row)),
    ),
    "": ("left", _course),
    "since\ns": ("right", lambda row: f"{row.task.elapsed_seconds:.1f}" if row.task else ""),
    "predicted\n(10–90 %) s": ("right", _predicted),
    "pace\n× usual": ("right", _pace),
    "of the\ntime": ("left", _saved),
    "cpu by\nothers": (
        "right",
        lambda row: f"{on.cpu_others:.0%}" if (on := row.worker.system) else "",
    ),
    "tasks\ndone": ("right", lambda row: str(row.worker.tasks_done)),
}
_DISPENSABLE = (
    "at",
    "labels",
    "cpu by\nothers",
    "tasks\ndone",
    "of the\ntime",
    "",
    "predicted\n(10–90 %) s",
    "process",
    "device",
)
"""Columns that a narrow terminal leaves out, in this order."""


LINE_SECONDS = 30.0
"""How often a file gets a line: a log of an hour has 120, and a test's run of seconds none."""
_LONG_SECONDS = 5.0
"""With shorter tasks, the bars' words would change all the time."""


class ProgressDisplay:
    """A context manager that draws what `show` gets, on a terminal or in a notebook.

    Callers may add bars to `bars`; the field `left` of such a bar says how long it takes, in words.
    `last` is the experiment as last shown.
    If the output is a file or a pipe, `show` writes a line after a round instead, but waits at
    least `line_seconds` between two lines. None writes no lines.
    """

    def __init__(self, console: Console, *, line_seconds: float | None = None) -> None:
        self.last: ExperimentSummary | None = None
        self._in_notebook = console.is_jupyter
        shown = console.is_terminal or self._in_notebook
        self._lines = None if shown or line_seconds is None else _Lines(console, line_seconds)
        columns = (
            TextColumn("{task.description:<24}", markup=False),
            BarColumn(bar_width=22),
            TextColumn("{task.fields[count]:>9}", markup=False),
            TimeElapsedColumn(),
            TextColumn("left"),
            _TimeLeft(),
        )
        self.bars = Progress(*columns, console=console, disable=not shown, transient=True)
        self._epochs = self.bars.add_task("starting workers", total=None, count="")
        self._shards = self.bars.add_task("", total=None, visible=False, count="")

    def __enter__(self) -> Self:
        if self._in_notebook:
            from IPython.display import display

            # Rich's own method needs ipywidgets, which many notebooks lack, and warns at each
            # drawing. So we redraw the output of the cell in place.
            show: Any = display  # IPython has types, but not for this function
            self._cell = show(self.bars, display_id=True)
        else:
            self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._in_notebook:
            self._cell.update(Text())
        else:
            self.bars.stop()

    def again(self, description: str) -> None:
        """Begin from the start, with another experiment."""
        self.bars.reset(self._epochs, description=description, total=None, count="")
        self.bars.reset(self._shards, visible=False, total=None)

    def show(self, status: Status) -> None:
        """Draw the experiment as it is now."""
        experiment = self.last = status.experiment
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
            description=_bar_headline(experiment, workers=len(status.workers)),
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
            self._cell.update(self.bars)
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
            self._console.print(f"{done} {_bar_headline(experiment, workers)}", highlight=False)


class _TimeLeft(TimeRemainingColumn):
    """The time left: the bar's own field `left` if it has one, else an estimate by its speed."""

    def render(self, task: Task) -> Text:
        left = task.fields.get("left")
        return super().render(task) if left is None else Text(left, style="progress.remaining")


def _bar_headline(experiment: ExperimentSummary, workers: int) -> str:
    if experiment.paused:
        return "paused"
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
