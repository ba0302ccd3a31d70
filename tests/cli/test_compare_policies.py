"""`downpour compare-policies`: every policy in the same conditions, and mistakes in one line."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest

from downpour.cli import run_command
from downpour.files.store.layout import RECORD_NAME
from downpour.record.view import to_fields
from downpour_lab.policylab.comparison import contenders
from downpour_lab.policylab.rerun import Tactic
from tests.downpour_lab.policylab.recordings import machines, recorded

ROUNDS, WORKERS = 2, 3


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """Write a trace of two small jobs; the second worker is slow."""
    count = 2 * ROUNDS * WORKERS
    rows = np.arange(count)
    took = 10.0 + 15.0 * (rows % WORKERS == 1)
    columns = {
        "job": rows // (ROUNDS * WORKERS),
        "round": rows // WORKERS % ROUNDS,
        "worker": rows % WORKERS,
        "n_samples": np.full(count, 3200),
        "completion_s": took,
    }
    for at, share in (("", 0.0), ("p10_", 0.1), ("p25_", 0.25), ("p50_", 0.5)):
        if at:
            columns[f"{at}elapsed_s"] = took * share
        for name in ("cpu_util", "loadavg1", "mem_used", "iowait"):
            columns[at + name] = np.full(count, 0.1)
    path = tmp_path / "traces.npz"
    np.savez(path, **columns)
    return path


def compared(traces: Path, *words: str) -> int:
    """Compare on that trace."""
    return run_command(["compare-policies", str(traces), "--rounds", "2", *words])


@pytest.mark.slow
def test_every_policy_is_run_in_every_scenario(
    traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row for each policy and job; waiting saves nothing, and dividing everything saves most."""
    assert compared(traces, "--jobs", "1", "--csv", "--scenario", "traced,one-straggler") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["policy"] for row in rows] == 2 * contenders()
    saved = {(row["scenario"], row["policy"]): float(row["mitigation"]) for row in rows}
    for scenario in ("traced", "one-straggler"):
        assert saved[scenario, "wait"] == pytest.approx(0.0)
        here = {name: value for (where, name), value in saved.items() if where == scenario}
        keeping = {n: v for n, v in here.items() if rows[contenders().index(n)]["lost"] == "0.0"}
        assert max(keeping, key=lambda name: keeping[name]) == "oracle-divided"
    assert {row["standbys"] for row in rows if row["policy"] == "wait"} == {"0"}


@pytest.mark.slow
def test_the_tables_fit_a_terminal(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table a scenario, and one of what each policy takes."""
    assert compared(traces, "--policies", "wait,oracle-whole-shards:0", "--price", "2") == 0
    told = capsys.readouterr().out
    assert "traced: 2 jobs" in told
    assert "what it takes" in told
    assert "…" not in told
    assert max(len(line.rstrip()) for line in told.splitlines()) <= 80


def test_programs_get_json(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With prices as they were told, and standbys as they were wished for."""
    words = ("--policies", "wait:2", "--scenario", "traced", "--jobs", "1", "--price", "0.5")
    assert compared(traces, *words, "--json", "--blind") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["policy"], row["standbys"], row["nodes"]) == ("wait", 2, 5)
    assert row["cost_per_hour"] == 2.5
    assert row["rounds"] == 2


def test_a_spec_is_trained_with_what_counted(
    traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who leaves nothing out has the accuracy of waiting; an oracle has none."""
    spec = tmp_path / "digits.toml"
    spec.write_text('dataset = "digits"\nsplit = "class"\n')
    words = ("--policies", "wait,handoff,backup,oracle-divided", "--scenario", "traced")
    assert compared(traces, *words, "--jobs", "1", "--json", "--spec", str(spec)) == 0
    rows = {row["policy"]: row for row in json.loads(capsys.readouterr().out)}
    accuracy = {name: row["accuracy"] for name, row in rows.items()}
    assert accuracy["handoff"] == accuracy["wait"] > 0
    assert accuracy["backup"] != accuracy["wait"]
    assert accuracy["oracle-divided"] is None
    assert rows["backup"]["worst_class_accuracy"] <= rows["backup"]["accuracy"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["figure.svg", "figure.png"])
def test_a_figure_is_drawn(traces: Path, tmp_path: Path, name: str) -> None:
    """With the straggler early, in the middle and late."""
    scenarios = "straggler-early,straggler-middle,straggler-late"
    words = ("--policies", "wait,gradient-coding", "--jobs", "2", "--scenario", scenarios)
    assert compared(traces, *words, "--figure", str(tmp_path / name)) == 0
    content = (tmp_path / name).read_bytes()
    assert len(content) > 1000
    if name.endswith(".svg"):
        assert b"straggler-middle" in content
        assert b"extra work, %" in content


def test_a_trace_that_cannot_be_used_costs_one_line(
    tmp_path: Path, traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No such file, a column that is missing, seconds below zero."""
    assert compared(tmp_path / "none.npz") == 2
    with np.load(traces) as file:
        columns = dict(file)
    fewer = {name: column for name, column in columns.items() if name != "p50_elapsed_s"}
    np.savez(tmp_path / "fewer.npz", **fewer)
    assert compared(tmp_path / "fewer.npz") == 2
    np.savez(tmp_path / "below.npz", **{**columns, "completion_s": -columns["completion_s"]})
    assert compared(tmp_path / "below.npz") == 2
    none, fewer_told, below = capsys.readouterr().err.splitlines()
    assert "no such file" in none
    assert "has no column p50_elapsed_s; needed are" in fewer_told
    assert "must be above 0" in below


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A shared directory with two recorded experiments: of three workers, and of one."""
    for called, workers in (("uneven-1", 3), ("alone-1", 1)):
        folder = tmp_path / "experiments" / called
        folder.mkdir(parents=True)
        record = recorded(machines(workers=workers, rounds=2), Tactic(policy="wait", mode="sync"))
        lines = [json.dumps({"at": at, **to_fields(line)}) for at, line in record]
        (folder / RECORD_NAME).write_text("\n".join([*lines, ""]))
    return tmp_path


def test_an_experiment_is_compared_by_its_id(
    shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The beginning of the ID is enough; what helps most is first, and remarks are apart."""
    words = ["compare-policies", "uneven", "--shared", str(shared), "--policies", "handoff,ssp"]
    assert run_command([*words, "--blind", "--json"]) == 0
    shown = capsys.readouterr()
    rows = json.loads(shown.out)
    assert {row["policy"] + " " + row["mode"] for row in rows} == {
        "wait sync",
        "handoff sync",
        "wait ssp",
    }
    assert rows[0]["policy"] == "handoff"
    assert rows[0]["saves"] > 0.2
    assert rows[-1]["used"]
    assert "Simulated with its own settings" in shown.err
    assert run_command([*words, "--blind"]) == 0
    assert "would have" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("experiment", "damage", "said"),
    [
        ("alone-1", "", "ID = 'alone-1': only one worker trained it"),
        ("uneven-1", "cut", "ID = 'uneven-1': has no finished round"),
        ("uneven-1", "{", "record.jsonl"),
        ("uneven", "{", "record.jsonl"),
    ],
)
def test_an_experiment_that_says_too_little_is_refused(
    shared: Path, capsys: pytest.CaptureFixture[str], experiment: str, damage: str, said: str
) -> None:
    """One worker, a record that has just begun, and a damaged one: a line each."""
    record = shared / "experiments" / "uneven-1" / RECORD_NAME
    lines = record.read_text().splitlines()
    if damage == "cut":
        record.write_text(lines[0] + "\n")
    elif damage:
        record.write_text("\n".join([lines[0], damage, *lines[1:], ""]))
    status = run_command(["compare-policies", experiment, "--shared", str(shared)])
    shown = capsys.readouterr()
    assert status in {1, 2}
    assert shown.out == ""
    [line] = shown.err.splitlines()
    assert said in line
