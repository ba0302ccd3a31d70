"""Where commands print."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from downpour.base.states import ExperimentState, WorkerState
from downpour.cli.printing import SpecOnce, note, out, print_json, print_result
from downpour.core.resolve import resolve
from downpour.core.spec import Spec
from downpour.network.rpc.messages import ExperimentSummary, Status, WorkerStatus
from downpour.record import Result
from tests.show.tables.test_terminal_tables import LINES


def test_notes_go_to_standard_error_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """Long ones are not broken and brackets are no markup."""
    note("[red]" + "x" * 200)
    assert capsys.readouterr() == ("", "[red]" + "x" * 200 + "\n")


WORKER = WorkerStatus(
    worker="worker-1", address="127.0.0.1:1", state=WorkerState.IDLE, tasks_done=0, device="cuda:1"
)


def during(state: ExperimentState) -> Status:
    """Make the status of an experiment in a state."""
    experiment = ExperimentSummary(
        experiment="any", name="any", state=state, rounds_done=0, rounds_total=1
    )
    return Status(change=1, experiment=experiment, workers=(WORKER,))


def test_the_spec_that_was_made_is_shown_once_training_begins(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What differs from the defaults, as TOML that makes it again, below the experiment's ID."""
    spec = Spec(shards=3, split="dirichlet(0.5)", model_options={"dropout": 0.1})
    seen: list[Status] = []
    show = SpecOnce(seen.append, spec).status
    early = [during(ExperimentState.WAITING), during(ExperimentState.PREPARING)]
    late = [during(ExperimentState.RUNNING), during(ExperimentState.FINISHED)]
    for status in early:
        show(status)
    assert capsys.readouterr().err == ""
    for status in late:
        show(status)
    said = capsys.readouterr().err
    assert Spec.from_toml(said) == spec
    assert said.splitlines()[0] == "# any"
    assert said.splitlines()[1] == "# device = auto: cuda"
    assert len(said.splitlines()) == 7  # three fields, a blank line and a table's head
    assert seen == early + late


def test_the_values_of_auto_are_explained_above_the_spec(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As a comment, once, and not before the experiment trains: what is shown is a spec."""
    asked = Spec.make({"optimizer_state": "auto"})
    shown = SpecOnce(lambda _: None, asked, ["2 workers"])
    shown.resolved(resolved := resolve(asked, 2))
    shown.status(during(ExperimentState.PREPARING))
    assert capsys.readouterr().err == ""
    for _ in range(2):
        shown.status(during(ExperimentState.RUNNING))
    said = capsys.readouterr().err
    assert Spec.from_toml(said).model_dump() == resolved.model_dump()
    name, remark, why = said.splitlines()[:3]
    assert (name, remark) == ("# any", "# 2 workers")
    assert why.startswith("# auto: optimizer_state = keep")


def test_an_experiment_without_workers_has_not_begun(capsys: pytest.CaptureFixture[str]) -> None:
    """The device that `auto` means is that of the workers, so the spec waits for one."""
    shown = SpecOnce(lambda _: None, Spec(shards=3))
    shown.status(replace(during(ExperimentState.RUNNING), workers=()))
    assert capsys.readouterr().err == ""
    shown.status(during(ExperimentState.RUNNING))
    assert capsys.readouterr().err.splitlines()[:2] == ["# any", "# device = auto: cuda"]


def test_an_experiment_that_never_trains_shows_no_spec(capsys: pytest.CaptureFixture[str]) -> None:
    """The reason stands alone, in one line."""
    SpecOnce(lambda _: None, Spec()).status(during(ExperimentState.FAILED))
    assert capsys.readouterr().err == ""


def test_piped_output_is_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no terminal, no line of a table is cut or wrapped."""
    monkeypatch.delenv("COLUMNS", raising=False)
    out.cache_clear()
    out().print("x y " * 500, end="")
    assert "\n" not in capsys.readouterr().out
    out.cache_clear()


def test_the_path_of_the_model_is_not_wrapped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands in a line of its own, however narrow the terminal is."""
    monkeypatch.setenv("COLUMNS", "80")
    out.cache_clear()
    folder = Path("a long name of a folder" * 9)
    print_result(Result.from_lines(LINES, folder))
    out.cache_clear()
    assert f"\nmodel {folder}/model-3.safetensors\n" in capsys.readouterr().out


def test_json_has_null_for_what_is_no_number(capsys: pytest.CaptureFixture[str]) -> None:
    """No parser but Python's own takes NaN, as a prediction may be."""
    print_json([{"a": math.nan, "b": (math.inf, -math.inf, 1.5)}])
    shown = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert shown == [{"a": None, "b": [None, None, 1.5]}]
