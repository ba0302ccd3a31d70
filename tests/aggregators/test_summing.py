"""The hot loop, where it differs from plain arithmetic: pieces, lanes, groups of files."""

from __future__ import annotations

import numpy as np
import pytest
import xxhash

from downpour.aggregators import summing
from downpour.aggregators.summing import RunningSum, Source
from downpour.store import Array, decode, encode


def source_of(tensors: dict[str, Array], factor: float = 1.0) -> tuple[Source, str]:
    """Return a file to be summed, and its checksum."""
    content = b"".join(encode(tensors, {}))
    file = decode(content, "file")
    source = Source(head=file.head, data=file.data, factor=factor)
    return source, xxhash.xxh3_128_hexdigest(content)


@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_every_byte_is_hashed_once_whoever_sums_it(
    monkeypatch: pytest.MonkeyPatch, lanes: int
) -> None:
    """Checksums are the whole files', for any number of threads and odd sizes."""
    monkeypatch.setattr(summing, "PIECE_BYTES", 40)
    tensors: dict[str, Array] = {
        "w": np.arange(101, dtype=np.float32),
        "n": np.arange(17),
        "b": np.ones(13, bool),
    }
    made = [source_of({**tensors, "n": tensors["n"] + number}) for number in range(5)]
    layout = decode(b"".join(encode(tensors, {})), "file").layout
    tally = RunningSum(layout, threads=lanes).add([source for source, _ in made])
    assert tally.checksums == tuple(checksum for _, checksum in made)
    assert tally.finite


def test_files_that_do_not_count_do_not_begin_the_sum() -> None:
    """Groups of factor 0 before and after leave the one that counts as it is."""
    layout = decode(b"".join(encode({"w": np.zeros(3)}, {})), "file").layout
    total = RunningSum(layout, threads=1)
    for value, factor in [(7.0, 0.0), (-0.0, 1.0), (9.0, 0.0)]:
        assert total.add([source_of({"w": np.full(3, value)}, factor)[0]]).finite
    assert np.signbit(total.tensors()["w"]).all()


@pytest.mark.parametrize("factor", [0.0, 0.5, 1.0])
def test_what_is_not_finite_shows_with_any_factor(factor: float) -> None:
    """Also a file that does not count must be finite."""
    tensors = {"w": np.array([1, np.nan, 3], np.float32)}
    source, _ = source_of(tensors, factor)
    layout = decode(b"".join(encode(tensors, {})), "file").layout
    assert not RunningSum(layout, threads=1).add([source]).finite


def test_halves_are_summed_in_single_precision() -> None:
    """What would overflow float16 on the way does not, and is rounded once."""
    tensors = {"w": np.full(3, 60000, np.float16)}
    layout = decode(b"".join(encode(tensors, {})), "file").layout
    total = RunningSum(layout, threads=1)
    assert total.add([source_of(tensors)[0] for _ in range(8)], divisor=8).finite
    np.testing.assert_array_equal(total.tensors()["w"], tensors["w"])


def test_no_tensors_are_no_work() -> None:
    """A model without parameters is hashed and otherwise left alone."""
    source, checksum = source_of({})
    tally = RunningSum(decode(b"".join(encode({}, {})), "f").layout, threads=2).add([source])
    assert tally.checksums == (checksum,)
