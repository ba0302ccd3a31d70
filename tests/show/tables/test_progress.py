"""Progress bars, as they look in a terminal of 80 columns."""

from __future__ import annotations

import io
import sys
import types
from dataclasses import replace

import pytest
from rich.console import Console, RenderableType

from downpour.base.states import ExperimentState, TaskState, WorkerState
from downpour.network.rpc.messages import (
    ExperimentSummary,
    Metric,
    Status,
    TaskStatus,
    WorkerStatus,
)
from downpour.show.tables.live import ProgressDisplay
from tests.show.terminal import rendered

WORKER = WorkerStatus(worker="w", address="127.0.0.1:1", state=WorkerState.IDLE, tasks_done=0)


def status(
    state: ExperimentState, done: int = 0, accuracy: float | None = None, **fields: object
) -> Status:
    """Make a status of an experiment of four epochs."""
    experiment = ExperimentSummary(
        experiment="e-1",
        name="e",
        state=state,
        rounds_done=done,
        rounds_total=4,
        metrics=() if accuracy is None else (Metric(name="accuracy", value=accuracy),),
    )
    made: dict[str, object] = {"change": 1, "workers": (WORKER,), "experiment": experiment}
    return Status(**{**made, **fields})  # type: ignore[arg-type]


def task(state: TaskState, done: int, total: int) -> TaskStatus:
    """Make a task."""
    return TaskStatus(shard=0, state=state, steps_done=done, steps_total=total, elapsed_seconds=1.0)


TASKS = (
    task(TaskState.PUBLISHED, 8, 8),
    task(TaskState.RUNNING, 4, 8),
    task(TaskState.PENDING, 0, 0),
)


def shown(*steps: Status, terminal: bool = True) -> str:
    """Show steps one after another; return the last picture, or what a file would hold."""
    file = io.StringIO()
    console = Console(file=file, width=80, color_system=None, force_terminal=terminal)
    with ProgressDisplay(console) as display:
        for step in steps:
            display.show(step)
        picture = rendered(display.bars.get_renderable())
    return picture if terminal else file.getvalue()


@pytest.mark.parametrize(
    ("step", "headline"),
    [
        (Status(change=0), "starting workers"),
        (status(ExperimentState.WAITING), "waiting for its turn"),
        (status(ExperimentState.PREPARING), "preparing the dataset"),
        (status(ExperimentState.RUNNING, workers=()), "waiting for workers"),
        (status(ExperimentState.RUNNING), "epochs "),
        (status(ExperimentState.RUNNING, 1, 0.5), "epochs, accuracy 50.00%"),
        (status(ExperimentState.FINISHED, 4, 1.0), "epochs, accuracy 100.00%"),
    ],
)
def test_the_headline_says_what_is_waited_for(step: Status, headline: str) -> None:
    """From the first moment to the last."""
    assert headline in shown(step)


def test_epochs_and_shards_are_counted_as_they_are_done() -> None:
    """A shard that is half trained moves its bar, but counts only when it is published."""
    picture = shown(status(ExperimentState.RUNNING, 2, 0.5, tasks=TASKS))
    assert "2/4" in picture
    assert "shards of epoch 3" in picture
    assert "1/3" in picture
    assert max(map(len, picture.splitlines())) <= 80


@pytest.mark.parametrize(
    ("seconds", "others", "words"),
    [
        (9.0, [], "publishing 240 of 800 MB "),
        (9.0, [task(TaskState.RUNNING, 4, 8)], "shards of epoch 3 "),
        (1.0, [], "shards of epoch 3 "),
    ],
)
def test_bars_that_stand_still_say_why(
    seconds: float, others: list[TaskStatus], words: str
) -> None:
    """They do so while no worker trains. Short tasks end before a person could read it."""
    one = replace(
        task(TaskState.RUNNING, 8, 8),
        elapsed_seconds=seconds,
        moved_bytes=12 * 10**7,
        update_bytes=4 * 10**8,
    )
    tasks = (TASKS[0], one, one, *others)
    picture = shown(status(ExperimentState.RUNNING, 2, tasks=tasks))
    assert words in picture
    assert max(map(len, picture.splitlines())) <= 80


def test_the_shards_are_shown_only_while_it_runs() -> None:
    """The end has no shards."""
    running = status(ExperimentState.RUNNING, 3, tasks=TASKS)
    ended = status(ExperimentState.FINISHED, 4, tasks=TASKS)
    assert "shards of" in shown(running)
    assert "shards of" not in shown(running, ended)
    assert "4/4" in shown(running, ended)


def test_whoever_writes_to_a_file_gets_no_bars() -> None:
    """Nothing at all is written."""
    assert shown(status(ExperimentState.RUNNING, 2, tasks=TASKS), terminal=False) == ""


@pytest.mark.parametrize(
    ("seconds", "lines"),
    [(0.0, "1/4 epochs, accuracy 50.00%\n3/4 epochs, accuracy 75.00%\n"), (3600.0, "")],
)
def test_a_file_gets_a_line_after_a_round_if_it_is_asked_for(seconds: float, lines: str) -> None:
    """A line for a round that is new, at most one in so many seconds, and none for the end."""
    console = Console(file=io.StringIO(), width=80, color_system=None, force_terminal=False)
    with ProgressDisplay(console, line_seconds=seconds) as display:
        display.show(status(ExperimentState.RUNNING, 0))
        for done, accuracy in ((1, 0.5), (1, 0.5), (3, 0.75)):
            display.show(status(ExperimentState.RUNNING, done, accuracy))
        display.show(status(ExperimentState.FINISHED, 4, 1.0))
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == lines


def test_a_notebook_shows_bars_that_grow_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """One output of the cell, drawn again with each status and empty in the end."""
    drawn: list[str] = []

    class Handle:
        def update(self, shown: RenderableType) -> None:
            """Take what is to be seen from now on."""
            drawn.append(rendered(shown))

    def display(shown: object, *, display_id: bool) -> Handle:
        assert display_id
        assert shown
        return Handle()

    notebook = types.SimpleNamespace(display=display)
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", notebook)
    with ProgressDisplay(Console(force_jupyter=True)) as display_:
        display_.show(status(ExperimentState.RUNNING, done=1, tasks=TASKS))
        display_.show(status(ExperimentState.RUNNING, done=2, tasks=TASKS))
    assert "1/4" in drawn[0]
    assert "2/4" in drawn[1]
    assert drawn[2].strip() == ""
