"""The model that a user names: an experiment, a file of it, or a file of any program."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
import xxhash
from safetensors.torch import save_file

from downpour.base.errors import SpecError
from downpour.files.store import SharedDirectory, encode
from downpour.files.store.model_files import find_model, read_model


@pytest.fixture
def shared(tmp_path: Path) -> SharedDirectory:
    """A shared directory with an experiment that has two versions of a model."""
    shared = SharedDirectory.open(tmp_path / "shared", create=True)
    shared.create_experiment("mine")
    for version in (9, 10):
        write(shared.experiment_path("mine") / f"model-{version:06d}-abc.safetensors")
    return shared


def write(path: Path) -> Path:
    """Write a small parameter file."""
    path.write_bytes(b"".join(encode({"w": np.arange(3.0)}, {})))
    return path


def test_an_experiment_is_its_final_model_or_its_newest(shared: SharedDirectory) -> None:
    """One that ended early has versions alone."""
    folder = shared.experiment_path("mine")
    assert find_model("mine", shared, field="f") == folder / "model-000010-abc.safetensors"
    final = write(folder / "model.safetensors")
    assert find_model("mine", shared, field="f") == final
    assert find_model(str(folder), None, field="f") == final


def test_a_file_of_an_experiment_is_named_within_it(shared: SharedDirectory) -> None:
    """Such as an earlier version."""
    found = find_model("mine/model-000009-abc.safetensors", shared, field="f")
    assert found.name == "model-000009-abc.safetensors"


def test_the_best_model_of_an_experiment_has_a_name(shared: SharedDirectory) -> None:
    """It lies beside the last one where the spec keeps it, and is there at the end."""
    with pytest.raises(
        SpecError, match=r"^f = 'mine@best': has no best model: that needs keep_best"
    ):
        find_model("mine@best", shared, field="f")
    best = write(shared.experiment_path("mine") / "best.safetensors")
    assert find_model("mine@best", shared, field="f") == best


def test_a_path_is_a_path_also_through_a_link(
    shared: SharedDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative to the working directory; caches of downloads hold links."""
    monkeypatch.chdir(tmp_path)
    real = write(tmp_path / "real")
    Path("link.safetensors").symlink_to(real)
    assert find_model("link.safetensors", shared, field="f") == real
    assert find_model("./link.safetensors", None, field="f") == real


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("none-1", "no such file, and no experiment in the shared"),
        ("none-1@best", "no such file, and no experiment in the shared"),
        ("no/such", "no such file"),
        ("mine/other.safetensors", "no such file"),
        ("empty", "has no model"),
        ("circle", "is a link to itself"),
        ("", "must be a path"),
        ("pipe", "no such file"),
    ],
)
def test_a_name_without_a_model_is_refused(
    shared: SharedDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, reason: str
) -> None:
    """In one line, with the user's own words."""
    monkeypatch.chdir(tmp_path)
    shared.create_experiment("empty")
    Path("circle").symlink_to("circle")
    os.mkfifo("pipe")
    with pytest.raises(SpecError) as refused:
        find_model(name, shared, field="f")
    assert str(refused.value).startswith(f"f = '{name}': ")
    assert reason in str(refused.value)


def test_other_programs_files_are_read_exactly(tmp_path: Path) -> None:
    """Half of bfloat16's numbers are odd, and each is one of float32's."""
    path = tmp_path / "theirs.safetensors"
    numbers = torch.arange(-7, 9).reshape(2, 8).to(torch.bfloat16) / 3
    save_file({"b": numbers, "w": torch.ones(2, dtype=torch.float16)}, path)
    read = read_model(path, "theirs", None, field="f")
    np.testing.assert_array_equal(read.tensors["b"], numbers.float().numpy())
    assert read.tensors["w"].dtype == np.float16
    assert read.checksum == xxhash.xxh3_128_hexdigest(path.read_bytes())


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("a.safetensors", b"", "must be a safetensors file: it is not a parameter file"),
        ("a.safetensors", b"\x80\x04" * 40, "must be a safetensors file"),
        ("a.pt", b"\x80\x04" * 40, "because pickles can run code; safetensors.torch.save_file"),
    ],
)
def test_other_formats_are_refused(tmp_path: Path, file: str, content: bytes, reason: str) -> None:
    """What torch pickles gets the line that converts it."""
    (tmp_path / file).write_bytes(content)
    with pytest.raises(SpecError) as refused:
        read_model(tmp_path / file, file, None, field="f")
    assert str(refused.value).startswith(f"f = '{file}': ")
    assert reason in str(refused.value)
