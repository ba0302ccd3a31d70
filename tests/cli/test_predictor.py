"""`downpour predictor` on the command line."""

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from downpour.predictor import pretrained
from downpour.predictor.learned import read_trained
from downpour_lab.cli.predictor import _table
from downpour_lab.fitting.scoring import Score
from tests.predictor.conftest import columns, few_trees, write
from tests.show.terminal import rendered

__all__ = ["few_trees"]

Downpour = Callable[..., Any]


def test_a_table_says_how_good_the_predictors_are(downpour: Downpour, tmp_path: Path) -> None:
    """One row for each at each stage; as JSON, the same in full."""
    path = write(tmp_path / "t.npz", columns())
    outcome = downpour("predictor", "score", path, "--only", "ewma,selector")
    assert (outcome.status, outcome.err) == (0, "")
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


def test_mistakes_cost_one_line(refused: Callable[..., str], tmp_path: Path) -> None:
    """A cut predictor, a trace without a column or with negative seconds, an unknown name."""
    path = write(tmp_path / "t.npz", columns())
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(b"\0" * 7)
    assert "is not a parameter file" in refused("predictor", "score", path, "--predictor", cut)
    assert "one of joins, paces" in refused("predictor", "score", path, "--stress", "joinz")
    short = {name: column for name, column in columns().items() if name != "completion_s"}
    assert "has no column completion_s" in refused(
        "predictor", "score", write(tmp_path / "short.npz", short)
    )
    wrong = columns() | {"completion_s": np.full(len(columns()["job"]), -1.0)}
    bad = write(tmp_path / "bad.npz", wrong)
    assert "column completion_s holds -1" in refused("predictor", "train", bad, "--out", cut)


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
