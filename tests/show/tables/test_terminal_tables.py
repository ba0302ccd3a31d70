"""The tables of a result in a terminal of 80 columns, also with names that others wrote."""

import dataclasses
import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import RenderableType
from rich.panel import Panel
from rich.text import Text

from downpour.base.states import ExperimentState, WorkerState
from downpour.network.rpc.messages import ExperimentSummary, Status, WorkerStatus
from downpour.record import Result
from downpour.record.result_parts import FailureResult
from downpour.show.tables.live import experiments_table, status_view
from downpour.show.tables.terminal_tables import (
    EPOCHS_MAX,
    SafeConsole,
    classes_table,
    result_table,
    seconds,
    study_table,
)
from tests.show.conftest import Make
from tests.show.terminal import rendered

RECORDED = Path(__file__).parents[2] / "recorded"
LINES = (RECORDED / "gestures" / "record.jsonl").read_text(encoding="utf-8").splitlines()


def test_the_tables_look_as_agreed() -> None:
    """Units in the headers, aligned numbers, a hyphen where nothing was measured."""
    result = Result.from_lines(LINES, Path("experiments/gestures-7f3a"))
    tables = result_table(result), classes_table(result)
    assert rendered(*tables) == (RECORDED / "gestures" / "tables.txt").read_text(encoding="utf-8")


def test_the_heading_names_what_is_trained() -> None:
    """A task of the user's in place of a network and a dataset, which it does not have."""
    result = Result.from_lines(LINES)
    assert f"{result.spec['model']} on {result.spec['dataset']}" in rendered(result_table(result))
    own = dataclasses.replace(result, spec={**result.spec, "task": "lab:Mine"})
    assert "  lab:Mine · " in rendered(result_table(own))


def test_a_group_of_a_study_is_told_in_a_line_a_setting(make: Make) -> None:
    """Its axes, accuracy and seconds of training; an interval is never broken in two."""
    said = rendered(study_table(make.splits()))
    lines = [line.split() for line in said.splitlines()]
    assert ["random", "average", "3", "62.00", "±", "2.48", "6.00", "±", "4.97"] in lines
    assert ["class", "first", "1", "91.00", "4.00"] in lines
    assert "2.48 " in rendered(study_table(make.splits()), width=60)


def test_what_was_done_about_stragglers_looks_as_agreed() -> None:
    """A table by epoch, estimates that are called so, and each class where shards were dropped."""
    lines = (RECORDED / "handoff" / "record.jsonl").read_text(encoding="utf-8").splitlines()
    said = rendered(result_table(Result.from_lines(lines, Path("experiments/uneven-51c0"))))
    assert said == (RECORDED / "handoff" / "tables.txt").read_text(encoding="utf-8")
    even = [line.replace('"split": "class"', '"split": "random"') for line in lines]
    assert "class:" not in rendered(result_table(Result.from_lines(even)))
    kept = [line for line in lines if '"dropped"' not in line and '"round": 2' not in line]
    assert "class:" not in rendered(result_table(Result.from_lines(kept)))


def test_a_healthy_run_has_nothing_to_say_about_stragglers() -> None:
    """One worker waits for no other, and a policy saves nothing where tasks differ by noise."""
    alone = [line for line in LINES if '"shard": 1' not in line and '"round": 1' not in line]
    said = rendered(result_table(Result.from_lines(alone)))
    assert "finished in" in said
    assert not any(word in said for word in ("unaided", "mitigated", "extra", "moves"))


def test_the_name_of_a_metric_stays_on_its_line() -> None:
    """However narrow the terminal: mean_abs_error is one word for those who search for it."""
    named = [line.replace('{"accuracy"', '{"mean_abs_error"') for line in LINES]
    assert "mean_abs_error" in rendered(result_table(Result.from_lines(named)), width=70)


def test_columns_without_a_measurement_are_left_out() -> None:
    """Without evaluations there are no empty columns."""
    unmeasured = [line for line in LINES if '"measured"' not in line]
    said = rendered(result_table(Result.from_lines(unmeasured)))
    assert "training" in said
    assert "accuracy" not in said
    assert "evaluation" not in said


@pytest.mark.parametrize("lines", range(1, len(LINES) + 1))
def test_an_experiment_can_be_shown_at_any_moment(lines: int) -> None:
    """However far it has come, there is something to see."""
    result = Result.from_lines(LINES[:lines])
    said = rendered(result_table(result), classes_table(result))
    assert said.startswith("gestures")
    assert result.state in said


def test_a_failure_says_why() -> None:
    """The reason stands beside the state, unchanged and whole."""
    failed = '{"at": 9, "kind": "failed", "reason": "no [bold] luck", "asked_wrongly": false}'
    said = rendered(result_table(Result.from_lines([*LINES[:4], failed])))
    assert "failed after 9.00 s: no [bold] luck\n" in said


def test_many_epochs_of_classes_fit_the_width() -> None:
    """At most six epochs are chosen, the first and the last among them."""
    result = Result.from_lines(LINES)
    first = result.rounds[0]
    many = tuple(dataclasses.replace(first, epoch=epoch) for epoch in range(1, 101))
    said = rendered(classes_table(dataclasses.replace(result, epochs=many)))
    assert "epoch 1 " in said
    assert "epoch 100" in said
    assert said.splitlines()[1].count("epoch") == 6
    assert max(map(len, said.splitlines())) <= 80


def test_a_terminal_shows_the_last_of_many_epochs() -> None:
    """It says how many it leaves out, and who has them."""
    result = Result.from_lines(LINES)
    first = result.rounds[0]
    many = tuple(dataclasses.replace(first, epoch=epoch) for epoch in range(1, EPOCHS_MAX + 6))
    said = rendered(result_table(dataclasses.replace(result, epochs=many)))
    assert "… 5 epochs before these; --csv has all of them\n" in said
    shown = re.findall(r"^ +(\d+) +\d", said, re.MULTILINE)
    assert [shown[0], shown[-1]] == ["6", str(EPOCHS_MAX + 5)]
    assert len(shown) == 2 * EPOCHS_MAX, "one table has their measures, another their stragglers"


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([0.0042, 0.5], ["0.004", "0.500"]),
        ([0.5, 12.0, None], ["0.50", "12.00", None]),
        ([1234.56, 0.1], ["1234.6", "0.1"]),
        ([], []),
    ],
)
def test_durations_of_a_column_share_their_decimals(
    values: list[float | None], shown: list[str | None]
) -> None:
    """So that they can be compared at a glance."""
    assert seconds(values) == shown


def test_tasks_that_were_trained_again_are_counted_in_a_line() -> None:
    """Their first updates were lost or damaged."""
    result = Result.from_lines(LINES)
    told = dataclasses.replace(result, retrained=1)
    assert "1 task was trained again" in rendered(result_table(told))
    assert "trained again" not in rendered(result_table(result))


RECORD = Path(__file__).parents[2] / "recorded" / "gestures" / "record.jsonl"
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
    lines = RECORD.read_text(encoding="utf-8").splitlines()
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
