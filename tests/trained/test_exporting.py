"""`downpour export`: a folder that is enough by itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import downpour
from downpour.errors import SpecError
from downpour.trained.exporting import export
from downpour.trained.finding import find
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


def test_nothing_is_overwritten(
    command: Downpour, result: downpour.Result, shared: Path, tmp_path: Path
) -> None:
    """A folder that holds something is refused."""
    (tmp_path / "mine.txt").touch()
    outcome = command("export", result.experiment, "--to", tmp_path, "--shared", shared)
    assert outcome.status == 2
    assert outcome.err.endswith("is not empty, and nothing is overwritten\n")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_folder_that_cannot_be_made_is_refused(
    result: downpour.Result, shared: Path, tmp_path: Path
) -> None:
    """A file is in its place."""
    (tmp_path / "file").touch()
    with pytest.raises(SpecError, match="cannot be written: Not a directory"):
        export(find(result, shared), tmp_path / "file" / "in")
