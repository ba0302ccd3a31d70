"""The hot loop, where it differs from plain arithmetic: pieces, lanes, groups of files."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest
import xxhash

from downpour.files.aggregators import summing
from downpour.files.aggregators.summing import RunningSum, SummedFile
from downpour.files.store import Array, UpdateFormat, decode, encode


def source_of(tensors: Mapping[str, Array], factor: float = 1.0) -> tuple[SummedFile, str]:
    """Return a file to be summed, and its checksum."""
    content = b"".join(encode(tensors, {}))
    file = decode(content, "file")
    source = SummedFile(head=file.head, data=file.data, factor=factor)
    return source, xxhash.xxh3_128_hexdigest(content)


def sum_over(base: Mapping[str, Array], *, divisor: float = 1.0, threads: int = 1) -> RunningSum:
    """Begin a sum of files that were trained from a model."""
    layout = decode(b"".join(encode(base, {})), "base").layout
    form = UpdateFormat(model=layout, base="")
    return RunningSum(form, source_of(base)[0], divisor=divisor, threads=threads)


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
    total = sum_over(tensors, divisor=8, threads=lanes)
    for some, is_last in ((made[:3], False), (made[3:], True)):
        tally = total.add([source for source, _ in some], is_last=is_last)
        assert tally.checksums == tuple(checksum for _, checksum in some)
        assert tally.sound
    assert total.base_checksum == source_of(tensors)[1]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_file_that_has_all_the_weight_is_taken_as_it_is(place: int) -> None:
    """Also where the sum goes over several groups: x0 - (x0 - x) is not always x."""
    value = np.array([0.1, -0.0, 3e38], np.float32)
    total = sum_over({"w": np.array([1e8, 0, -3e38], np.float32)})
    for number in range(3):
        counts = number == place
        tensors = {"w": value if counts else np.full(3, 7, np.float32)}
        assert total.add([source_of(tensors, float(counts))[0]], is_last=number == 2).sound
    assert total.tensors()["w"].tobytes() == value.tobytes()


@pytest.mark.parametrize("factor", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("base", [0.0, math.inf])
def test_what_is_not_finite_shows_with_any_factor(factor: float, base: float) -> None:
    """Also a file that does not count must be finite."""
    source, _ = source_of({"w": np.array([1, np.nan, 3], np.float32)}, factor)
    assert not sum_over({"w": np.array([1, base, 3], np.float32)}).add([source]).sound


@pytest.mark.parametrize("constant", [-math.inf, math.inf, math.nan])
@pytest.mark.parametrize("groups", [1, 2])
def test_what_is_not_finite_in_the_base_is_a_constant(constant: float, groups: int) -> None:
    """A causal mask stays what it is, and what lies beside it is averaged."""
    mask = np.array([0, constant, 2], np.float32)
    total = sum_over({"w": mask}, divisor=2)
    files = [source_of({"w": mask + np.float32(step)})[0] for step in (1, 2)]
    if groups == 2:
        assert total.add(files[:1], is_last=False).sound
    assert total.add(files[groups - 1 :]).sound
    np.testing.assert_array_equal(total.tensors()["w"], mask + np.float32(1.5))


@pytest.mark.parametrize("factor", [0.0, 0.5])
def test_a_constant_that_has_changed_shows(factor: float) -> None:
    """In every update: a worker that changed it computes differently from the others."""
    base = {"w": np.array([1, -np.inf], np.float32)}
    for other in (0.0, np.inf, np.nan):
        source, _ = source_of({"w": np.array([1, other], np.float32)}, factor)
        assert not sum_over(base).add([source]).sound


def test_halves_are_summed_in_single_precision() -> None:
    """What would overflow float16 on the way does not, and is rounded once."""
    tensors = {"w": np.full(3, 60000, np.float16)}
    total = sum_over({"w": np.full(3, -60000, np.float16)}, divisor=8)
    assert total.add([source_of(tensors)[0] for _ in range(8)]).sound
    np.testing.assert_array_equal(total.tensors()["w"], tensors["w"])


def test_no_tensors_are_no_work() -> None:
    """A model without parameters is hashed and otherwise left alone."""
    source, checksum = source_of({})
    tally = sum_over({}, threads=2).add([source])
    assert tally.checksums == (checksum,)
