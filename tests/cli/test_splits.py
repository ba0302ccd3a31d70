"""`downpour splits`: how splits cut the data, told to people and to programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Downpour

SPEC = """
dataset = "npz"
data_path = "set.npz"
model = "mlp"
shards = 3
seed = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A spec, and a dataset of forty training examples of four classes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.toml").write_text(SPEC)
    x, y = np.zeros((40, 2)), np.arange(40) % 4
    np.savez(tmp_path / "set.npz", x=x, y=y, x_test=x[:8], y_test=y[:8])
    return tmp_path


def test_the_split_of_a_spec_is_shown(downpour: Downpour, folder: Path) -> None:
    """Nothing is left behind where there is no shared directory."""
    before = sorted(folder.iterdir())
    outcome = downpour("splits", "spec.toml")
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.startswith("split random: 40 examples in 3 shards; examples of each class:")
    assert "sizes max/min 1.08; mean distance" in outcome.out
    assert sorted(folder.iterdir()) == before


def test_splits_are_compared_one_below_the_other(downpour: Downpour, folder: Path) -> None:
    """In the order asked for, with other shards than the spec's."""
    asked = ["class", "equal", "dirichlet(0.1)"]
    words = [word for split in asked for word in ("--split", split)]
    outcome = downpour("splits", folder / "spec.toml", "--shards", 2, *words)
    heads = [line.split(":")[0] for line in outcome.out.splitlines() if line.startswith("split ")]
    assert heads == [f"split {split}" for split in asked]
    told = json.loads(downpour("splits", "spec.toml", "--shards", 2, *words, "--json").out)
    assert (told["seed"], told["shards"]) == (3, 2)
    assert [split["split"] for split in told["splits"]] == asked
    by_class, equal, _ = told["splits"]
    assert [shard["by_class"] for shard in by_class["shards"]] == [[10, 0, 10, 0], [0, 10, 0, 10]]
    assert by_class["mean_distance"] == 0.5
    assert equal["mean_distance"] == 0


def test_shards_that_no_file_names_are_those_of_a_run(downpour: Downpour, folder: Path) -> None:
    """A note says so, beside the result."""
    (folder / "spec.toml").write_text(SPEC.replace("shards = 3", ""))
    outcome = downpour("splits", "spec.toml")
    number = int(outcome.err.removeprefix("shards = ").partition(",")[0])
    assert "as `downpour run` would take here; --shards takes another number" in outcome.err
    assert f"40 examples in {number} shard" in outcome.out


@pytest.mark.parametrize("name", ["figure.svg", "figure.png"])
def test_a_figure_is_drawn_beside_the_table(downpour: Downpour, folder: Path, name: str) -> None:
    """In the form that the name says."""
    outcome = downpour("splits", "spec.toml", "--split", "class", "--to", name)
    assert (outcome.status, outcome.err) == (0, f"drawn: {name}\n")
    content = (folder / name).read_bytes()
    assert b"<svg" in content if name.endswith(".svg") else content.startswith(b"\x89PNG")


def test_a_task_without_classes_has_sizes_alone(
    downpour: Downpour, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Said in a line; a split by classes is refused as a run refuses it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    downpour("init", "--template", "regression")
    words = ["splits", "regression/spec.toml", "--allow", "regression", "--shards", 3]
    outcome = downpour(*words, "--to", "figure.svg")
    assert outcome.status == 0, outcome.err
    assert "split random: 2,000 examples in 3 shards" in outcome.out
    assert "examples have no classes, so only sizes are shown" in outcome.out
    assert "sizes max/min 1.00" in (tmp_path / "figure.svg").read_text()
    assert downpour(*words, "--split", "class").err == (
        "downpour: split = 'class': must be random because the dataset has no classes\n"
    )


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["spec.toml", "--shards", "41"], "shards = 41: must be from 1 to 40"),
        (["spec.toml", "--split", "dirichlet"], "did you mean dirichlet(0.5)?"),
        (["spec.toml", "--split", "random", "--split", "dirichlet(0)"], "ALPHA above 0"),
        (["spec.toml", "--to", "no/figure.svg"], "to = 'no/figure.svg': must end with .png or"),
        (["gone.toml"], "data_path = 'gone.npz': no such file"),
        (["wrong.toml"], "shards = 'x': "),
        (["grid.toml"], "trials = 2: makes this a grid"),
    ],
)
def test_a_mistake_is_told_in_one_line(
    refused: Callable[..., str], folder: Path, words: list[str], line: str
) -> None:
    """Nothing is drawn then."""
    (folder / "gone.toml").write_text(SPEC.replace("set.npz", "gone.npz"))
    (folder / "wrong.toml").write_text(SPEC.replace("shards = 3", 'shards = "x"'))
    (folder / "grid.toml").write_text(f"{SPEC}trials = 2\n")
    before = sorted(folder.iterdir())
    assert line in refused("splits", *words)
    assert sorted(folder.iterdir()) == before
