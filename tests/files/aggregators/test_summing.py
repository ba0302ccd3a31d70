"""Sums of updates along a tree, and the versions that are made of them."""

import errno
import math
import mmap
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from downpour.base.errors import FileCorrupt, FileMissing
from downpour.base.values import PublishedFile
from downpour.files.aggregators import Move, Versions, additions, moved, summing
from downpour.files.aggregators.additions import PartialSum, Step, SummedFile
from downpour.files.aggregators.summing import AddedFiles, Summing
from downpour.files.store import (
    Array,
    DirectoryStore,
    ParameterFile,
    UpdateFormat,
    decode,
    directory,
    encode,
    step_to,
)
from downpour.files.store.publish import RetryPolicy


def source_of(tensors: Mapping[str, Array], factor: float = 1.0) -> tuple[SummedFile, str]:
    """Return a file to be summed, and its checksum."""
    content = b"".join(encode(tensors, {}))
    file = decode(content, "file")
    source = SummedFile(head=file.head, data=file.data, factor=factor)
    return source, xxhash.xxh3_128_hexdigest(content)


def sum_over(base: Mapping[str, Array], *, threads: int = 1) -> Summing:
    """Begin to sum files that were trained from a model."""
    layout = decode(b"".join(encode(base, {})), "base").layout
    form = UpdateFormat(model=layout, base="")
    return Summing(form, source_of(base)[0], threads=threads)


def in_turn(*terms: SummedFile | PartialSum) -> list[Step]:
    """Return the steps that add each term to those before it."""
    return [*terms[:1], *(step for term in terms[1:] for step in (term, None))]


def mean_of(
    base: Mapping[str, Array],
    groups: Sequence[Sequence[SummedFile]],
    *,
    divisor: float = 1.0,
    sole: SummedFile | None = None,
) -> AddedFiles:
    """Sum groups of files, each in a pass; the last one makes the mean."""
    total, made = sum_over(base), AddedFiles(sums=(), checksums=(), sound=True)
    for number, group in enumerate(groups, start=1):
        end = divisor if number == len(groups) else None
        seen = sole if any(file is sole for some in groups[:number] for file in some) else None
        one = total.add(in_turn(*made.sums, *group), divisor=end, sole=seen)
        made = replace(one, sound=one.sound and made.sound)
    return made


@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_every_byte_is_hashed_once_whoever_sums_it(
    monkeypatch: pytest.MonkeyPatch, lanes: int
) -> None:
    """Checksums are the whole files', the base's too, for any number of threads and odd sizes."""
    monkeypatch.setattr(summing, "PIECE_BYTES", 40)
    tensors: dict[str, Array] = {
        "w": np.arange(101, dtype=np.float32),
        "n": np.arange(17),
        "b": np.ones(13, bool),
    }
    made = [source_of({**tensors, "n": tensors["n"] + number}) for number in range(5)]
    total, sums = sum_over(tensors, threads=lanes), tuple[PartialSum, ...]()
    for some, divisor in ((made[:3], None), (made[3:], 8.0)):
        added, other = [source for source, _ in some[:-1]], some[-1][0]
        tally = total.add(in_turn(*sums, *added), others=[other], divisor=divisor)
        assert tally.checksums == tuple(checksum for _, checksum in some)
        assert tally.sound
        sums = tally.sums
    assert total.base_checksum == source_of(tensors)[1]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_file_that_has_all_the_weight_is_taken_as_it_is(place: int) -> None:
    """Also where the sum goes over several groups: x0 - (x0 - x) is not always x."""
    value = np.array([0.1, -0.0, 3e38], np.float32)
    others = np.full(3, 7, np.float32)
    files = [
        source_of({"w": value if number == place else others}, float(number == place))[0]
        for number in range(3)
    ]
    base = {"w": np.array([1e8, 0, -3e38], np.float32)}
    made = mean_of(base, [files[:1], files[1:2], files[2:]], sole=files[place])
    assert made.sound
    assert made.sums[0].tensors()["w"].tobytes() == value.tobytes()


def test_a_file_without_weight_adds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its piece of memory holds what another file left there."""
    monkeypatch.setattr(summing, "PIECE_BYTES", 64)
    base = {"w": np.zeros(200, np.float32)}
    files = [
        source_of({"w": np.full(200, number, np.float32)}, float(number % 2))[0]
        for number in range(1, 7)
    ]
    made = mean_of(base, [files])
    np.testing.assert_array_equal(made.sums[0].tensors()["w"], np.full(200, 9, np.float32))


@pytest.mark.parametrize("factor", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("base", [0.0, math.inf])
def test_a_non_finite_number_shows_with_any_factor(factor: float, base: float) -> None:
    """Also a file that does not count must be finite."""
    source, _ = source_of({"w": np.array([1, np.nan, 3], np.float32)}, factor)
    assert not mean_of({"w": np.array([1, base, 3], np.float32)}, [[source]]).sound


@pytest.mark.parametrize("constant", [-math.inf, math.inf, math.nan])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_non_finite_number_of_the_base_is_a_constant(constant: float, groups: int) -> None:
    """A causal mask stays what it is, and what lies beside it is averaged."""
    mask = np.array([0, constant, 2], np.float32)
    files = [source_of({"w": mask + np.float32(step)})[0] for step in (1, 2)]
    made = mean_of({"w": mask}, [files] if groups == 1 else [files[:1], files[1:]], divisor=2)
    assert made.sound
    np.testing.assert_array_equal(made.sums[0].tensors()["w"], mask + np.float32(1.5))


@pytest.mark.parametrize("factor", [0.0, 0.5])
def test_a_constant_that_has_changed_shows(factor: float) -> None:
    """In every update: a worker that changed it computes differently from the others."""
    base = {"w": np.array([1, -np.inf], np.float32)}
    for other in (0.0, np.inf, np.nan):
        source, _ = source_of({"w": np.array([1, other], np.float32)}, factor)
        assert not mean_of(base, [[source]]).sound


def test_halves_are_summed_in_single_precision() -> None:
    """What would overflow float16 on the way does not, and is rounded once."""
    tensors = {"w": np.full(3, 60000, np.float16)}
    files = [source_of(tensors)[0] for _ in range(8)]
    made = mean_of({"w": np.full(3, -60000, np.float16)}, [files], divisor=8)
    assert made.sound
    np.testing.assert_array_equal(made.sums[0].tensors()["w"], tensors["w"])


def test_no_tensors_are_no_work() -> None:
    """A model without parameters is hashed and otherwise left alone."""
    source, checksum = source_of({})
    tally = sum_over({}, threads=2).add([source])
    assert tally.checksums == (checksum,)


def test_a_sum_that_meets_no_other_stays_as_it_is() -> None:
    """A pass changes the sums that it adds to, and no others."""
    base = {"w": np.zeros(3, np.float32)}
    total, files = (
        sum_over(base),
        [source_of({"w": np.full(3, n, np.float32)})[0] for n in (1, 2, 4)],
    )
    (first,) = total.add([files[0]]).sums
    before = first.tensors()["w"].copy()
    apart, together = total.add([first, files[1], files[2], None]).sums
    assert apart is first
    np.testing.assert_array_equal(first.tensors()["w"], before)
    np.testing.assert_array_equal(together.tensors()["w"], np.full(3, -6, np.float32))
    (whole,) = total.add([apart, together, None], divisor=-1.0).sums
    assert whole is first
    np.testing.assert_array_equal(whole.tensors()["w"], np.full(3, -7, np.float32))


@pytest.mark.parametrize("disk", ["", "full", "cannot reserve"])
def test_a_sum_for_which_memory_is_short_goes_into_a_file(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, disk: str
) -> None:
    """It has the bytes of a sum in memory, and goes there all the same if the disk is full.

    One line says so, because the kernel may then kill the process. Systems that reserve no disk
    keep the sum in memory, and there is nothing to say.
    """

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    base: dict[str, Array] = {"w": np.arange(101, dtype=np.float32)}
    files = [source_of({"w": base["w"] * factor})[0] for factor in (2.0, 3.5)]
    in_memory = mean_of(base, [files], divisor=2).sums[0]
    monkeypatch.setattr(additions, "_SPARE_BYTES", 100)
    monkeypatch.setattr(additions, "free_memory", lambda: 4 * 101 + 99)
    if disk == "full":
        monkeypatch.setattr(os, "posix_fallocate", full)
    elif disk:
        monkeypatch.delattr(os, "posix_fallocate")
    spilled = mean_of(base, [files], divisor=2).sums[0]
    memory: Any = next(iter(spilled.totals.values()))
    while isinstance(memory, np.ndarray):
        memory = memory.base
    assert isinstance(memory, memoryview) == (not disk)
    assert ("No space left on device" in caplog.text) == bool(caplog.text) == (disk == "full")
    assert disk or isinstance(memory.obj, mmap.mmap)
    assert np.array_equal(spilled.tensors()["w"], in_memory.tensors()["w"])


def test_a_sum_that_memory_holds_is_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a byte more, the same sum stays in memory: files are for shortage alone."""
    base: dict[str, Array] = {"w": np.arange(101, dtype=np.float32)}
    files = [source_of({"w": base["w"] * 2})[0]]
    monkeypatch.setattr(additions, "_SPARE_BYTES", 100)
    monkeypatch.setattr(additions, "free_memory", lambda: 4 * 101 + 100)
    monkeypatch.setattr(additions, "TemporaryFile", None)
    assert mean_of(base, [files]).sound


NUMBERS: dict[str, Array] = {"w": np.arange(1000, dtype=np.float32)}
ABOUT = {"buffers": "[]"}


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    """An empty folder, whose missing files are not waited for."""
    return DirectoryStore(tmp_path, RetryPolicy(seconds=0))


def published(store: DirectoryStore, name: str) -> PublishedFile:
    """Publish a version."""
    return store.put_new(name, encode(NUMBERS, ABOUT))


def test_a_cached_version_equals_its_file(store: DirectoryStore) -> None:
    """Tensors, metadata and layout are those that a reader of the file finds."""
    file = published(store, "model")
    versions = Versions(store)
    read = versions.read(file)
    versions.keep(file, NUMBERS, ABOUT)
    kept = versions.read(file)
    assert (kept.metadata, kept.layout) == (read.metadata, read.layout)
    assert kept.tensors["w"].tobytes() == read.tensors["w"].tobytes()


def test_a_kept_version_is_not_read_again_until_it_is_forgotten(store: DirectoryStore) -> None:
    """Its file may even be gone; what is removed takes no memory."""
    file, versions = published(store, "model"), Versions(store)
    versions.keep(file, NUMBERS, ABOUT)
    store.delete("model")
    assert versions.read(file).tensors["w"][3] == 3
    for forget in (partial(versions.forget, [file]), versions.clear):
        versions.keep(file, NUMBERS, ABOUT)
        forget()
        with pytest.raises(FileMissing):
            versions.read(file)


def test_what_has_no_room_in_memory_is_mapped(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file is not verified again, and may even be gone."""
    files = [published(store, f"model-{number}") for number in range(2)]
    versions = Versions(store, limit_bytes=NUMBERS["w"].nbytes)
    monkeypatch.setattr(directory, "check_content", lambda *_: pytest.fail("verified"))
    for file in files:
        versions.keep(file, NUMBERS, ABOUT)
        store.delete(file.name)
    assert versions.read(files[0]).tensors["w"] is NUMBERS["w"]
    assert isinstance(versions.read(files[1]), ParameterFile)
    assert versions.base_of(files[1], "none").is_verified


def test_the_newest_stays_where_versions_are_steps(store: DirectoryStore) -> None:
    """However large it is: the next one is a step from it, and its file alone does not tell it."""
    first = published(store, "model-0")
    files, versions = [first], Versions(store, limit_bytes=NUMBERS["w"].nbytes - 1)
    for number in (1, 2):
        base = Versions(store).read(first)
        model, content = step_to({"w": NUMBERS["w"] + number}, base, first, "int8")
        files.append(store.put_new(f"model-{number}", content))
        versions.keep(files[-1], model.tensors, model.metadata)
    for file in files:
        store.delete(file.name)
    assert versions.read(files[2]).tensors["w"].tobytes() == model.tensors["w"].tobytes()
    with pytest.raises(FileMissing):
        versions.read(files[1])


JOINED = np.arange(12, dtype=np.float32)


@pytest.mark.parametrize(
    ("tensors", "verified"),
    [
        ({"a": JOINED[:4], "b": JOINED[4:].reshape(2, 4)}, True),
        ({"a": JOINED[4:8], "b": JOINED[8:]}, False),
        ({"a": JOINED[6:], "b": JOINED[:6]}, False),
        ({"a": JOINED.copy()}, False),
    ],
    ids=["in one piece", "a part of it", "in another order", "apart"],
)
def test_a_base_is_taken_from_memory_where_its_bytes_are_those_of_its_file(
    store: DirectoryStore, tensors: dict[str, Array], *, verified: bool
) -> None:
    """Otherwise from the file, with the same numbers."""
    file, versions = store.put_new("model", encode(tensors, ABOUT)), Versions(store)
    versions.keep(file, tensors, ABOUT)
    base = versions.base_of(file, "none")
    assert base.is_verified is verified
    held = base.form.model.views(base.source.data)
    assert all(held[name].tobytes() == tensor.tobytes() for name, tensor in tensors.items())


def test_a_manager_that_has_kept_nothing_reads_the_steps(store: DirectoryStore) -> None:
    """The base of a round's updates is the version, and never its step by itself."""
    first = published(store, "model-0")
    model, content = step_to({"w": NUMBERS["w"] + 1}, Versions(store).read(first), first, "int8")
    second = store.put_new("model-1", content)
    versions = Versions(store)
    with pytest.raises(FileCorrupt, match="is a difference"):
        versions.base_of(second, "int8")
    versions.follow([first, second])
    base = versions.base_of(second, "int8")
    assert base.form.base == second.checksum
    held = base.form.model.views(base.source.data)
    assert held["w"].tobytes() == model.tensors["w"].tobytes()


def test_a_move_from_memory_has_the_bytes_of_one_from_files(store: DirectoryStore) -> None:
    """So a manager that takes over, which has kept nothing, goes on with the same numbers."""
    random = np.random.default_rng(0)
    tensors = [{"w": random.normal(size=150_000).astype(np.float32)} for _ in range(3)]
    old, model, update = (
        store.put_new(f"file-{number}", encode(one, {})) for number, one in enumerate(tensors)
    )
    keeping = Versions(store)
    keeping.keep(old, tensors[0], {})
    keeping.keep(model, tensors[1], {})
    moves = [Move(shard=0, file=update, base=old, factor=0.3)]
    after = moved(keeping, model, moves)["w"]
    assert after.tobytes() == moved(Versions(store), model, moves)["w"].tobytes()
    x0, x, xi = (one["w"] for one in tensors)
    assert after.tobytes() == (x - 0.3 * (x0 - xi)).tobytes()
    assert keeping.read(model).tensors["w"].tobytes() == x.tobytes()
