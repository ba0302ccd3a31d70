"""The spec's fields as options of `run` and `submit`, and what a mistake in one costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

from downpour.base.errors import SpecError
from downpour.base.options import option
from downpour.cli.parameters import command
from downpour.cli.spec_options import AskedSpec, parse_fields
from downpour.core.spec import Option, Spec

MISTAKES = [
    (["--learning-rate", "-1"], "learning_rate = -1: must be a number above 0"),
    (["--learning-rate", "fast"], "learning_rate = 'fast': must be a number above 0"),
    (["--epochs", "0"], "epochs = 0: must be a whole number of at least 1"),
    (["--epochs", "1.5"], "epochs = 1.5: must be a whole number"),
    (["--split", "thirds"], "split = 'thirds': must be random, class, equal or dirichlet(ALPHA)"),
    (["--betas", "0.9"], "betas = 0.9: must be two numbers"),
    (["--aggregate", "mean"], "aggregate = 'mean': must be average, weighted, samples or first"),
    (["--model-options", "dropout"], "model_options = 'dropout': must be KEY=VALUE"),
    (["--dataset", "npz"], "data_path = None: dataset 'npz' needs a path"),
    (["--nesterov", "--momentum", "0"], "nesterov = True: needs a momentum above 0"),
]
FILES = [
    ("lerning_rate = 1", "lerning_rate = 1: no such field; did you mean learning_rate?"),
    ("learning_rate = -1", "learning_rate = -1: must be a number above 0"),
    ("epochs = '3'", "epochs = '3': must be a whole number"),
    ("epochs = = 3", "FILE = '"),
]


@pytest.mark.parametrize("command", ["run", "submit"])
@pytest.mark.parametrize(("words", "line"), MISTAKES)
def test_a_wrong_option_is_told_in_one_line(
    refused: Callable[..., str], command: str, words: list[str], line: str
) -> None:
    """The field, the value and what is accepted; no process is started or called."""
    assert refused(command, *words).startswith(line)


@pytest.mark.parametrize(("text", "line"), FILES)
def test_a_wrong_file_is_told_in_one_line(
    refused: Callable[..., str], tmp_path: Path, text: str, line: str
) -> None:
    """The same line as for an option."""
    file = tmp_path / "spec.toml"
    file.write_text(text)
    assert refused("run", file).startswith(line)


def test_a_file_that_cannot_be_read_is_named(refused: Callable[..., str], tmp_path: Path) -> None:
    """Missing, a folder, or not text."""
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "missing.toml", tmp_path, binary):
        assert refused("run", path).startswith(f"FILE = '{path}'")


@dataclass(frozen=True, kw_only=True)
class More:
    """An option beside those of a spec."""

    extra: str = option("", "More.", "TEXT")


def test_options_override_the_file(tmp_path: Path) -> None:
    """What was typed wins, field by field, and the rest stays."""
    seen: list[tuple[Spec, str]] = []

    @command
    def train(more: More, asked: AskedSpec) -> None:
        seen.append((asked.spec, more.extra))

    app = typer.Typer()
    app.command()(train)
    file = tmp_path / "spec.toml"
    file.write_text("epochs = 7\nlearning_rate = 0.5\nflip = true\n")
    words = [str(file), "--epochs", "9", "--no-flip", "--extra", "more"]
    words += ["--model-options", "dropout=0.5", "--model-options", "hidden=[8, 8]"]
    app(words, standalone_mode=False)
    asked: dict[str, Option] = {"dropout": 0.5, "hidden": [8, 8]}
    expected = Spec(epochs=9, learning_rate=0.5, flip=False, model_options=asked)
    assert seen == [(expected, "more")]


@pytest.mark.parametrize(
    ("field", "typed", "value"),
    [
        ("name", "7", "7"),
        ("shards", "4", 4),
        ("learning_rate", "1e-3", 1e-3),
        ("betas", "0.8,0.9", [0.8, 0.9]),
        ("split", "dirichlet(0.5)", "dirichlet(0.5)"),
        ("flip", False, False),
        (
            "dataset_options",
            ["a=text", "b=true", "c=[1, 2]"],
            {"a": "text", "b": True, "c": [1, 2]},
        ),
    ],
)
def test_values_are_read_as_toml_reads_them(field: str, typed: Any, value: Any) -> None:
    """Texts stay texts, and what was not typed is left out."""
    assert parse_fields({field: typed, "epochs": None}) == {field: value}


def test_a_pair_needs_a_key() -> None:
    """`=3` names nothing."""
    with pytest.raises(SpecError, match="KEY=VALUE"):
        parse_fields({"model_options": ["=3"]})
