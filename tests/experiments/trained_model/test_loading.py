"""`downpour.load_model`: the network that was trained, from whatever names it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import downpour
from downpour.base.errors import SpecError
from downpour.experiments.trained_model.loading import load_model

pytestmark = pytest.mark.slow


def test_every_name_of_a_model_gives_the_network_with_its_parameters(
    result: downpour.Result, shared: Path
) -> None:
    """A result, its ID, its file and its folder are the same one, ready to be used."""
    assert result.model_file is not None
    known = load_file(result.model_file)
    for source in (result, result.experiment, result.model_file, result.model_file.parent):
        model = load_model(source, shared=shared)
        assert isinstance(model, nn.Module)
        assert not model.training
        state = model.state_dict()
        assert state.keys() == known.keys()
        assert all(torch.equal(state[name], known[name]) for name in known)
        assert model(torch.zeros(3, 1, 8, 8)).shape == (3, 10)


def test_an_earlier_version_is_named_within_its_experiment(
    result: downpour.Result, shared: Path
) -> None:
    """Version 1 is what the second round began with."""
    folder = shared / "experiments" / result.experiment
    [file] = folder.glob("model-000001-*")
    first = downpour.load_model(f"{result.experiment}/{file.name}", shared=shared)
    last = downpour.load_model(result, shared=shared)
    assert not torch.equal(next(first.parameters()), next(last.parameters()))


def test_a_file_somewhere_else_needs_its_spec(
    result: downpour.Result, shared: Path, tmp_path: Path
) -> None:
    """The spec says what to build, and its data are prepared if they are not there."""
    assert result.model_file is not None
    alone = shutil.copy(result.model_file, tmp_path / "alone.safetensors")
    with pytest.raises(SpecError, match=r"has no spec\.toml next to it"):
        downpour.load_model(alone, shared=shared)
    spec = downpour.Spec.make(result.spec)
    model = downpour.load_model(alone, shared=shared, spec=spec)
    assert model(torch.zeros(1, 1, 8, 8)).shape == (1, 10)


@pytest.mark.parametrize(
    ("source", "changes", "reason"),
    [
        ("nobody", {}, "model = 'nobody': no such file, and no experiment in the shared"),
        ("FOLDER/record.jsonl", {}, "must be a safetensors file"),
        ("FOLDER", {"model": "mlp"}, "belongs to another network: it has "),
        ("FOLDER", {"model": "lab:Net"}, "DOWNPOUR_ALLOW allows none on this machine"),
        (3, {}, "model = 3: must be a path"),
    ],
)
@pytest.mark.usefixtures("allowing")
def test_what_cannot_be_loaded_is_told_in_one_line(
    result: downpour.Result, shared: Path, source: Any, changes: dict[str, str], reason: str
) -> None:
    """By name, file, network or allow-list, where nothing is allowed."""
    if isinstance(source, str):
        source = source.replace("FOLDER", str(shared / "experiments" / result.experiment))
    spec = downpour.Spec.make({**result.spec, **changes}) if changes else None
    with pytest.raises(SpecError) as refused:
        downpour.load_model(source, shared=shared, spec=spec)
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)
