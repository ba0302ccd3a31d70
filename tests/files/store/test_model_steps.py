"""Versions that are published as steps, and the model that a user names."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import xxhash
from safetensors.torch import save_file

from downpour.base.errors import FileCorrupt, FileMissing, SpecError, StoreError
from downpour.base.values import PublishedFile
from downpour.files.compression import CODECS
from downpour.files.store import (
    Array,
    Parameters,
    SharedDirectory,
    Store,
    decode,
    encode,
    model_metadata,
    read_version,
    step_to,
)
from downpour.files.store.layout import MemoryStore, ModelName
from downpour.files.store.model_files import find_model, read_model, version_in, whole_content

ABOUT = model_metadata(["b.mean", "d.count"])


def tensors(seed: int) -> dict[str, Array]:
    """Return parameters and buffers."""
    random = np.random.default_rng(seed)
    return {
        "a.weight": random.normal(size=(3, 1667)).astype(np.float32),
        "b.mean": random.normal(size=3).astype(np.float32),
        "c.half": random.normal(size=200).astype(np.float16),
        "d.count": np.array(seed),
        "e.wide": random.normal(size=300),
    }


def published(
    store: Store, codec: str, versions: int = 4, whole: Sequence[int] = (0,)
) -> tuple[list[PublishedFile], list[Parameters]]:
    """Publish some versions, each a step from the one before unless it is to be whole."""
    first = encode(tensors(0), ABOUT)
    files = [store.put_new(str(ModelName(0, "t0")), first)]
    models: list[Parameters] = [decode(b"".join(first), "model")]
    for number in range(1, versions):
        model, content = step_to(tensors(number), models[-1], files[-1], codec)
        held = encode(model.tensors, ABOUT) if number in whole else content
        files.append(store.put_new(str(ModelName(number, f"t{number}")), held))
        models.append(model)
    return files, models


def nothing(_: PublishedFile) -> None:
    """Have no version in memory."""


def assert_same(one: Parameters, other: Parameters) -> None:
    """Compare all bytes, and what versions say of themselves."""
    assert one.metadata == other.metadata
    assert one.layout == other.layout
    for name, tensor in one.tensors.items():
        assert tensor.tobytes() == other.tensors[name].tobytes(), name


@pytest.mark.parametrize("codec", CODECS)
def test_every_reader_comes_to_the_same_version(codec: str) -> None:
    """From its files alone, from a version that it has, or from a whole one on the way."""
    store = MemoryStore()
    files, models = published(store, codec)
    for number, (file, model) in enumerate(zip(files, models, strict=True)):
        assert_same(read_version(store, file, files[:number], nothing), model)
        assert_same(version_in(store, file.name), model)
    known = {files[1]: models[1]}
    assert_same(read_version(store, files[3], files[:3], known.get), models[3])
    # What is not compressed is as it was aggregated, and what is compressed near to that.
    for name in ("b.mean", "d.count"):
        np.testing.assert_array_equal(models[3].tensors[name], tensors(3)[name])


@pytest.mark.parametrize("codec", CODECS)
def test_a_version_has_the_same_parameters_whole_or_as_a_step(codec: str) -> None:
    """So it does not matter which versions are whole."""
    steps, mixed = (
        published(MemoryStore(), codec)[1],
        published(MemoryStore(), codec, whole=(0, 2))[1],
    )
    for step, other in zip(steps, mixed, strict=True):
        assert_same(step, other)


def test_a_reader_reads_no_more_than_it_must() -> None:
    """Steps after the version that it has, or after a whole one, and nothing before."""
    store = MemoryStore()
    files, models = published(store, "int8", versions=6, whole=(0, 3))
    for number in (0, 1, 2):
        store.delete(files[number].name)
    assert_same(read_version(store, files[5], files[:5], nothing), models[5])
    store.delete(files[3].name)
    assert_same(read_version(store, files[5], files[:5], {files[4]: models[4]}.get), models[5])
    with pytest.raises(FileMissing):
        read_version(store, files[5], files[:5], nothing)


def test_a_step_leads_from_its_own_version_alone() -> None:
    """One that is named wrongly, or not at all, is refused; nothing is made of it."""
    store = MemoryStore()
    files, _ = published(store, "int8")
    for leading in ((), files[1:2], [files[0], files[0], files[0]]):
        with pytest.raises(FileCorrupt, match=r"another version|does not name"):
            read_version(store, files[3], leading, nothing)
    store.delete(files[1].name)
    with pytest.raises(FileCorrupt, match="the version before it is missing"):
        version_in(store, files[3].name)


def test_a_step_in_an_unknown_codec_is_refused() -> None:
    """It may be of a later release."""
    store = MemoryStore()
    base = store.put_new(str(ModelName(0, "a")), encode(tensors(0), ABOUT))
    step = encode(tensors(1), {"compression": "later", "trained_from": base.checksum})
    file = store.put_new(str(ModelName(1, "b")), step)
    with pytest.raises(StoreError, match="'later', which this version does not know"):
        read_version(store, file, [base], nothing)


def test_the_whole_of_a_version_can_be_kept_by_itself() -> None:
    """A whole one as it is, byte for byte, and a step as if it had been published whole."""
    store = MemoryStore()
    files, models = published(store, "terngrad", versions=3)
    assert b"".join(whole_content(store, files[0].name)) == bytes(store.read(files[0]))
    whole = decode(b"".join(whole_content(store, files[2].name)), "model")
    assert_same(whole, models[2])


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
        ("mi", "no experiment in the shared directory; write the whole ID, mine"),
        ("mi@best", "no experiment in the shared directory; write the whole ID, mine@best"),
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
