"""`downpour export`: a folder that is enough by itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import downpour
from downpour.base.errors import SpecError
from downpour.experiments.trained_model.loading import export
from downpour.experiments.trained_model.locating import find
from tests.cli.conftest import Downpour, own_signals
from tests.cli.conftest import downpour as command

__all__ = ["command", "own_signals"]

pytestmark = pytest.mark.slow


def test_an_exported_folder_loads_without_the_shared_directory(
    command: Downpour, result: downpour.Result, shared: Path, tmp_path: Path
) -> None:
    """Plain torch reads the parameters; `load_model` builds the network from what lies there."""
    to = tmp_path / "out"
    outcome = command("export", result.experiment, "--to", to, "--shared", shared)
    assert (outcome.status, outcome.err) == (0, "")
    names = ["facts.json", "model.safetensors", "spec.toml"]
    assert outcome.out.splitlines() == [str(to / name) for name in names]
    model = downpour.load_model(to, shared=tmp_path / "nowhere")
    state = load_file(to / "model.safetensors")
    assert all(torch.equal(model.state_dict()[name], state[name]) for name in state)
    assert result.model_file is not None
    assert state.keys() == load_file(result.model_file).keys()


def test_without_a_folder_it_makes_one_that_bears_the_experiments_name(
    command: Downpour,
    result: downpour.Result,
    shared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the current folder; a second time it is not empty."""
    monkeypatch.chdir(tmp_path)
    outcome = command("export", result.experiment, "--shared", shared)
    assert (outcome.status, outcome.err) == (0, "")
    assert (tmp_path / f"{result.experiment}-export" / "model.safetensors").is_file()
    assert "is not empty" in command("export", result.experiment, "--shared", shared).err


def test_nothing_is_overwritten(
    command: Downpour, result: downpour.Result, shared: Path, tmp_path: Path
) -> None:
    """A folder that holds something is refused."""
    (tmp_path / "mine.txt").touch()
    outcome = command("export", result.experiment, "--to", tmp_path, "--shared", shared)
    assert outcome.status == 2
    assert outcome.err.endswith("is not empty, and Downpour never overwrites files\n")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_folder_that_cannot_be_made_is_refused(
    result: downpour.Result, shared: Path, tmp_path: Path
) -> None:
    """A file is in its place."""
    (tmp_path / "file").touch()
    with pytest.raises(SpecError, match="cannot be written: Not a directory"):
        export(find(result, shared), tmp_path / "file" / "in")


def _of(changes: dict[str, Any]) -> Callable[[dict[str, Any]], bytes]:
    return lambda stated: json.dumps({**stated, **changes}).encode()


HOSTILE: dict[str, Callable[[dict[str, Any]], bytes]] = {
    "no JSON": lambda _: b"not json",
    "no object": lambda _: b"[]",
    "nothing": lambda _: b"{}",
    "depth without end": lambda _: b'{"a":' * 100_000,
    "digits without end": lambda _: b'{"mean": ' + b"9" * 100_000 + b"}",
    "no sample_shape": _of({"sample_shape": []}),
    "another sample_shape": _of({"sample_shape": [1, 4, 16]}),
    "sizes beyond numpy": _of({"sample_shape": [2**70]}),
    "a negative count": _of({"train_samples": -1}),
    "a count of others": _of({"test_samples": 7}),
    "a count in words": _of({"train_samples": "400"}),
    "a mean that is no number": _of({"mean": [float("nan")]}),
    "a mean of another length": _of({"mean": [0.0, 0.0]}),
    "a std of zero": _of({"std": [0.0]}),
    "no targets": _of({"targets_per_sample": 0}),
    "other arrays": _of({"arrays": {}}),
    "a remark of numbers": _of({"remarks": [1]}),
}


@pytest.mark.parametrize("fault", HOSTILE)
def test_facts_that_cannot_be_are_refused(
    command: Downpour, result: downpour.Result, shared: Path, tmp_path: Path, fault: str
) -> None:
    """An exported folder may come from anybody; a refused one is neither loaded nor passed on."""
    model = tmp_path / "out"
    export(find(result, shared), model)
    facts = model / "facts.json"
    facts.write_bytes(HOSTILE[fault](json.loads(facts.read_bytes())))
    outcome = command("export", model, "--to", tmp_path / "again", "--shared", tmp_path)
    assert outcome.status == 2, outcome
    assert outcome.err.count("\n") == 1
    assert "facts.json" in outcome.err
    assert not (tmp_path / "again").exists()
