"""The spec's fields as options of `run` and `submit`, and what a mistake in one costs."""

from __future__ import annotations

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
