"""Names and reasons that others wrote, in everything that is shown of an experiment."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import RenderableType
from rich.panel import Panel
from rich.text import Text

from downpour.base.states import ExperimentState, WorkerState
from downpour.network.rpc.messages import ExperimentSummary, Status, WorkerStatus
from downpour.record.result import Result
from downpour.record.result_parts import FailureResult
from downpour.show.tables.live import experiments_table, status_view
from downpour.show.tables.terminal_tables import SafeConsole, result_table
from tests.show.terminal import rendered

RECORDED = Path(__file__).parents[2] / "recorded" / "gestures" / "record.jsonl"
HOSTILE = "\x1b[2J\n\x07[red]\u202e"
"""Clears the screen, breaks the line, rings, is markup and turns the text around."""
SHOWN = r"\x1b[2J \x07[red]\u202e"


def status_of(said: str) -> RenderableType:
    """Show what `status` and `watch` show."""
    idle = WorkerState.IDLE
    worker = WorkerStatus(worker=said, address=said, state=idle, running=None, tasks_done=0)
    status = Status(change=1, workers=(worker,), experiment=summary(said), decisions=(said,))
    return status_view(status)


def list_of(said: str) -> RenderableType:
    """Show what `list` shows."""
    return experiments_table([summary(said)])


def summary(said: str) -> ExperimentSummary:
    """Make an experiment that failed, in others' words."""
    return ExperimentSummary(
        experiment=said,
        name=said,
        state=ExperimentState.FAILED,
        rounds_done=0,
        rounds_total=1,
        reason=said,
    )


def results_of(said: str) -> RenderableType:
    """Show what `results` shows."""
    return result_table(result(said))


def result(said: str) -> Result:
    """Make a result that failed, in others' words."""
    lines = RECORDED.read_text(encoding="utf-8").splitlines()
    failed = FailureResult(
        epoch=1, round=1, shard=0, attempt=0, worker=said, failure="training", reason=said
    )
    return dataclasses.replace(
        Result.from_lines(lines),
        name=said,
        reason=said,
        failures=(failed,),
        dataset=(said,),
        worker_changes=(said,),
        numeric_classes={said: ("one",), "another": ("two",)},
    )


@pytest.mark.parametrize("show", [status_of, list_of, results_of])
def test_what_others_wrote_is_shown_and_not_obeyed(show: Callable[[str], RenderableType]) -> None:
    """As many lines as plain words of its length take, of which each can be printed."""
    lines = rendered(show(HOSTILE), width=300).split("\n")
    assert len(lines) == len(rendered(show("x" * len(SHOWN)), width=300).split("\n"))
    assert any(SHOWN in line for line in lines)
    assert [line for line in lines if not line.isprintable()] == []


def test_a_notebook_is_not_obeyed_either() -> None:
    """The line that stands for a result is one."""
    assert repr(result(HOSTILE)).isprintable()


@pytest.mark.parametrize(
    "part", [HOSTILE, Text(HOSTILE), Panel(Text(HOSTILE))], ids=["str", "Text", "Panel"]
)
def test_the_console_obeys_no_text(part: RenderableType) -> None:
    """Also where a table forgot to look at its cells; lines stay lines."""
    console = SafeConsole(file=io.StringIO(), width=300, color_system=None)
    console.print(part, markup=False)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert r"\x1b[2J" in text
    assert all(line.isprintable() for line in text.split("\n"))


def test_the_console_keeps_its_own_controls() -> None:
    """Colors of its own reach the terminal as before."""
    console = SafeConsole(file=io.StringIO(), force_terminal=True, color_system="standard")
    console.print(Text("now", style="red"))
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == "\x1b[31mnow\x1b[0m\n"
