"""`downpour compare-policies`, `predictor` and `simulate` on the command line."""

import csv
import inspect
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from downpour.cli import run_command
from downpour.files.store.layout import RECORD_NAME
from downpour.predictor import pretrained
from downpour.predictor.learned import read_trained
from downpour.record.view import to_fields
from downpour_lab.cli.predictor import _table
from downpour_lab.fitting.scoring import Score
from downpour_lab.policylab.comparison import contenders
from downpour_lab.policylab.rerun import Tactic
from downpour_lab.simulated.manager import SimulatedManager
from downpour_lab.trials import simulation
from tests.downpour_lab.policylab.recordings import machines, recorded
from tests.downpour_lab.trials.defects import ActsBeforeItKeeps
from tests.predictor.conftest import columns, few_trees, write
from tests.show.terminal import rendered

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
def test_a_figure_is_drawn(traces: Path, tmp_path: Path) -> None:
    """With the straggler early, in the middle and late."""
    scenarios = "straggler-early,straggler-middle,straggler-late"
    words = ("--policies", "wait,gradient-coding", "--jobs", "2", "--scenario", scenarios)
    figure = tmp_path / "figure.svg"
    assert compared(traces, *words, "--figure", str(figure)) == 0
    content = figure.read_bytes()
    assert b"straggler-middle" in content
    assert b"extra work, %" in content


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
    assert run_command([*words[:-1], "handoff:2"]) == 2
    assert "has no :N, because an ID's workers" in capsys.readouterr().err


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


__all__ = ["few_trees"]

Downpour = Callable[..., Any]


def test_a_table_says_how_good_the_predictors_are(downpour: Downpour, tmp_path: Path) -> None:
    """One row for each at each stage; as JSON, the same in full."""
    path = write(tmp_path / "t.npz", columns())
    outcome = downpour("predictor", "score", path, "--only", "ewma,selector")
    assert (outcome.status, outcome.err) == (0, "scoring ewma: 3 of 6 steps\n")
    cells = [line.split() for line in outcome.out.splitlines()]
    rows = [words[:2] for words in cells if words and words[0] in {"ewma", "selector"}]
    assert rows == [
        ["ewma", "assignment"],
        ["ewma", "25"],
        ["selector", "assignment"],
        ["selector", "25"],
    ]
    told = json.loads(downpour("predictor", "score", path, "--only", "ewma", "--json").out)
    assert [one["stage"] for one in told] == ["assignment", "25 %"]
    assert 0 < told[0]["mape"] < 1


@pytest.mark.slow
@pytest.mark.usefixtures("few_trees")
def test_kinds_of_jobs_have_tables_of_their_own(downpour: Downpour, tmp_path: Path) -> None:
    """By what jobs.json says of them; a fold may be a kind, so that nothing like it was seen."""
    path = write(tmp_path / "t.npz", columns())
    kinds = enumerate(["calm", "calm", "wild"])
    told = [{"job": job, "scenario": kind, "seed": job} for job, kind in kinds]
    (tmp_path / "jobs.json").write_text(json.dumps(told))
    words = ("predictor", "score", path, "--only", "trees", "--by", "scenario")
    rows = json.loads(downpour(*words, "--hold-out", "scenario", "--json").out)
    assert [row["group"] for row in rows] == ["calm", "calm", "wild", "wild"]
    folded = json.loads(downpour(*words, "--folds", 3, "--json").out)
    assert folded[0]["mape"] != rows[0]["mape"]
    shown = downpour("predictor", "score", path, "--only", "ewma", "--by", "scenario").out
    assert shown.split()[0] == "calm"
    assert "wild" in shown


def test_a_table_says_how_honest_the_quantiles_are(downpour: Downpour, tmp_path: Path) -> None:
    """For all tasks and the first ones; with a stress, from where workers join or slow down."""
    path = write(tmp_path / "t.npz", columns())
    words = ("predictor", "score", path, "--only", "lstm", "--coverage")
    shown = downpour(*words).out.splitlines()
    rows = [line.split() for line in shown if "assignment" in line]
    assert [row[2] for row in rows] == ["all", "1st", "2nd–5th", "6th–20th"]
    assert [row[3] for row in rows] == ["216", "18", "72", "126"]
    assert max(map(len, shown)) <= 80
    for stress in ("joins", "paces"):
        told = json.loads(downpour(*words, "--stress", stress, "--json").out)
        assert {one["tasks"] for one in told} >= {"all", "1st", "2nd–5th"}
        assert len(told[0]["below"]) == 4


def test_training_writes_a_file_that_predicts(downpour: Downpour, tmp_path: Path) -> None:
    """The table can be made with it, and says that it knows these traces already."""
    path, file = write(tmp_path / "t.npz", columns()), tmp_path / "mine.safetensors"
    outcome = downpour("predictor", "train", path, "--out", file, "--epochs", 1, "--nets", 1)
    assert outcome.status == 0
    assert "trained on 3 jobs" in outcome.err
    assert read_trained(file).lstm["cell.state"].shape[0] == 1
    assert pretrained(file).predict("w", {"n_samples": 3200.0}).q50 > 0
    scored = downpour("predictor", "score", path, "--predictor", file, "--only", "lstm")
    assert "trained on these same traces" in scored.err


def test_numbers_stay_whole_at_80_columns() -> None:
    """Names give way, digits do not."""
    fields: dict[str, Any] = dict.fromkeys(inspect.signature(Score).parameters, 0.12345)
    fields |= {
        "group": "",
        "predictor": "a very long name of a predictor",
        "stage": "a quarter done",
    }
    fields["microseconds"] = 12345.0
    told = rendered(_table([Score(**fields)]))
    assert {"12.3%", "0.1235", "0.123", "12345"} <= set(told.split())
    assert "…" not in told
    assert max(map(len, told.splitlines())) <= 80


@pytest.mark.slow
def test_seeds_that_are_well_end_with_status_0(downpour: Downpour) -> None:
    """One line says how many there were."""
    outcome = downpour("simulate", "--seeds", 20, "--from-seed", 5)
    assert (outcome.status, outcome.out) == (0, "")
    assert outcome.err.startswith("20 seeds, ")
    told = json.loads(downpour("simulate", "--seeds", 3, "--json").out)
    assert (told["seeds"], told["failure"]) == (3, None)
    assert (told["twice"], told["changed"]) == ([0], [])
    assert all(made > 0 for made in told["compared"].values())
    assert "manager.results" in told["never"]["message"]


def test_a_seed_tells_its_story(downpour: Downpour) -> None:
    """Its faults have numbers, and can be left out."""
    whole = downpour("simulate", "--seed", 8, "--story")
    assert whole.status == 0
    assert "  [1] " in whole.out
    assert "all experiments have ended" in whole.out.splitlines()[-1]
    calm = downpour("simulate", "--seed", 8, "--faults", "none", "--story")
    assert "  [" not in calm.out
    told = json.loads(downpour("simulate", "--seed", 8, "--faults", "1", "--json").out)
    assert [fault["number"] for fault in told["faults"]] == [1]
    assert "all is well" in downpour("simulate", "--seed", 8).out


@pytest.mark.slow
def test_a_failing_seed_ends_with_status_1_and_the_command_that_shows_it(
    downpour: Downpour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The story is that of the fewest faults that it takes; repeated, it is the same."""
    real = simulation.simulate

    def simulate(
        plan: Any, manager_class: type[SimulatedManager] = SimulatedManager, **how: Any
    ) -> Any:
        """Run it under a manager that has a defect."""
        return real(
            plan, ActsBeforeItKeeps if manager_class is SimulatedManager else manager_class, **how
        )

    monkeypatch.setattr(simulation, "simulate", simulate)
    monkeypatch.setattr(simulation, "simulate", simulate)
    outcome = downpour("simulate", "--seeds", 600)
    assert outcome.status == 1
    assert "is running" in outcome.out
    assert "faults are enough:" in outcome.out
    again = outcome.err.splitlines()[-1].removeprefix("again: downpour ").split()
    shown = downpour(*again)
    assert shown.status == 1
    assert shown.out.splitlines()[-1] == outcome.out.splitlines()[-1]
    assert json.loads(downpour(*again[:-1], "--json").out)["failure"]


def test_a_failure_is_shown_as_it_is(downpour: Downpour, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brackets in it are no colours, and what looks like the end of one is no mistake."""
    failure = "shard [1] of [red]x[/red] was [/lost]"
    real = simulation.simulate
    monkeypatch.setattr(
        simulation, "simulate", lambda plan, **how: replace(real(plan, **how), failure=failure)
    )
    outcome = downpour("simulate", "--seed", 8)
    assert outcome.status == 1
    assert outcome.out.startswith(f"seed 8: {failure} (")


def test_workers_are_counted_in_rounds_an_hour(downpour: Downpour) -> None:
    """As a table within 80 columns, or as JSON."""
    words = ("simulate", "--workers", 4, "--shards", 8, "--rounds", 2, "--spread", 0)
    shown = downpour(*words)
    assert shown.status == 0
    assert "rounds per hour" in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80
    told = json.loads(downpour(*words, "--json").out)
    assert 28 < told["rounds_per_hour"] < 30
    assert (told["workers"], told["shards"], told["lost"]) == (4, 8, 0)
    apart = json.loads(downpour(*words, "--mode", "downpour", "--policy", "dylu", "--json").out)
    assert (apart["mode"], apart["policy"], len(apart["staleness"])) == ("downpour", "dylu", 16)
