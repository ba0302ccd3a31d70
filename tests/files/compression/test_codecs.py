"""What every codec promises: sizes told before, bounded errors, zeros that stay, equal bytes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from downpour.base.errors import NonFinite
from downpour.core.spec import Spec
from downpour.files.compression import CODECS, STRIDE, Bytes, Numbers

LENGTHS = [0, 1, 2, 63, 64, 65, 127, 2047, 2048, 2049, 4095, 4096, 4097, 10_000, 300_001]

FINITE = st.floats(width=32, min_value=-60_000, max_value=60_000)
NUMBERS = st.builds(
    lambda some, count: np.resize(some, count).astype(np.float32),
    arrays.arrays(np.float32, st.integers(1, 200), elements=FINITE),
    st.sampled_from([0, 1, 5, 64, 100, 2048, 2100, 4096, 9000]),
)

every_codec = pytest.mark.parametrize("name", CODECS)


def decoded(name: str, encoded: Bytes, count: int) -> Numbers:
    """Return what the bytes hold."""
    out = np.full(count, 7, np.float32)
    CODECS[name].decode(encoded, out)
    return out


def there_and_back(name: str, numbers: Numbers) -> Numbers:
    """Encode and decode."""
    return decoded(name, CODECS[name].encode(numbers), len(numbers))


def largest_in(numbers: Numbers, block: int) -> Numbers:
    """Return for each number the largest magnitude of its block."""
    parts = [numbers[at : at + block] for at in range(0, len(numbers), block)]
    return np.concatenate([np.full(len(p), np.abs(p).max()) for p in parts] or [numbers])


BOUNDS: dict[str, Callable[[Numbers], Any]] = {
    "float32": lambda x: 0 * x,
    "bfloat16": lambda x: np.abs(x) * 2.0**-8,
    "float16": lambda x: np.abs(x) * 2.0**-11 + 2.0**-25,
    "int8": lambda x: largest_in(x, 2048) * (0.5001 / 127),
    # A level: the scale is rounded up to bfloat16.
    "int3": lambda x: largest_in(x, 128) * (1.01 / 3),
    "terngrad": lambda x: largest_in(x, 128) * 1.01,
    # What is not sent is no larger than it was, and what is sent is below the block's largest.
    "ternary": lambda x: largest_in(x, 2048) * 1.0001,
    "topk": lambda x: largest_in(x, 4096) * 1.01,
}


def test_every_codec_can_be_chosen() -> None:
    """The spec names them, and knows which of them leave something for the next task."""
    for name, codec in CODECS.items():
        assert Spec.make({"compression": name}).hands_on == (codec.feedback is not None)
    assert CODECS.keys() == BOUNDS.keys()


@every_codec
@pytest.mark.parametrize("count", LENGTHS)
def test_the_size_follows_from_the_count_alone(name: str, count: int) -> None:
    """Known before, for any numbers, and the bytes from a multiple of the stride on are a whole."""
    codec, random = CODECS[name], np.random.default_rng(count)
    numbers = random.normal(size=count).astype(np.float32)
    encoded = codec.encode(numbers)
    assert (encoded.dtype, encoded.shape) == (np.dtype(np.uint8), (codec.size(count),))
    found = decoded(name, encoded, count)
    for first in range(0, count, STRIDE):
        last = min(first + STRIDE, count)
        piece = encoded[codec.size(first) : codec.size(last)]
        np.testing.assert_array_equal(decoded(name, piece, last - first), found[first:last])


@every_codec
@given(numbers=NUMBERS)
def test_decoded_numbers_are_near_the_encoded_ones(name: str, numbers: Numbers) -> None:
    """Within the codec's bound; and zeros are zeros."""
    found = there_and_back(name, numbers)
    assert np.all(np.abs(found - numbers) <= BOUNDS[name](numbers) + 1e-37)
    assert not found[numbers == 0].any()


@every_codec
@given(numbers=NUMBERS)
def test_equal_numbers_give_equal_bytes(name: str, numbers: Numbers) -> None:
    """Wherever they lie in memory."""
    apart = np.repeat(numbers, 2)[::2]
    assert CODECS[name].encode(numbers).tobytes() == CODECS[name].encode(apart).tobytes()


@every_codec
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 4095, 5000])
def test_non_finite_numbers_are_refused(name: str, bad: float, place: int) -> None:
    """No bytes are made of it."""
    numbers = np.zeros(5001, np.float32)
    numbers[place] = bad
    with pytest.raises(NonFinite, match="NaN or infinity"):
        CODECS[name].encode(numbers)


@every_codec
@pytest.mark.parametrize("size", [1e-45, 1e-40, 1e-30, 1.0, 3.3e38])
def test_numbers_of_any_size_stay_finite(name: str, size: float) -> None:
    """The smallest may become zeros; what does not fit is refused."""
    numbers = (np.linspace(-1, 1, 5000) * size).astype(np.float32)
    if name == "float16" and size > 65504:
        with pytest.raises(NonFinite, match="too large for float16"):
            CODECS[name].encode(numbers)
        return
    found = there_and_back(name, numbers)
    assert np.isfinite(found).all()
    assert np.abs(found).max() <= 1.01 * np.abs(numbers).max().astype(np.float64)


@pytest.mark.parametrize("name", [name for name, codec in CODECS.items() if codec.feedback])
def test_with_its_error_memory_a_codec_sends_everything_in_the_end(name: str) -> None:
    """The mean of what is sent of the same numbers, again and again, comes near to them."""
    random = np.random.default_rng(3)
    numbers = random.normal(size=5000).astype(np.float32)
    unsent, total = np.zeros_like(numbers), np.zeros_like(numbers)
    for _ in range(400):
        due = numbers + unsent
        sent = there_and_back(name, due)
        unsent, total = due - sent, total + sent
    assert np.linalg.norm(total / 400 - numbers) < 0.15 * np.linalg.norm(numbers)


@pytest.mark.parametrize("name", ["int3", "terngrad"])
def test_random_rounding_is_right_on_average(name: str) -> None:
    """A number's neighbors decide how it is rounded; over many of them its mean is itself."""
    random, tries, kept = np.random.default_rng(5), 4000, 0.3
    total = np.zeros(3 * 128, np.float32)
    for _ in range(tries):
        numbers = random.normal(size=3 * 128).astype(np.float32)
        numbers[::128] = kept
        total += there_and_back(name, numbers) - numbers
    # Each is off by less than the largest of its block, about 2.5, so the mean by 2.5 / 63, and
    # hardly ever by five times as much.
    assert np.abs(total / tries).max() < 5 * 2.5 / np.sqrt(tries)
    assert np.abs(total[::128] / tries).max() < kept / 2


@pytest.mark.parametrize("name", ["int3", "terngrad"])
def test_shards_that_differ_a_little_are_rounded_differently(name: str) -> None:
    """So the mean of many is nearer to the truth than each, as their noise is not one."""
    random = np.random.default_rng(6)
    truth = random.normal(size=4096).astype(np.float32)
    shards = truth + np.float32(1e-4) * random.normal(size=(64, 4096)).astype(np.float32)
    sent = [there_and_back(name, one) for one in shards]
    each = np.linalg.norm(sent[0] - truth)
    assert np.linalg.norm(np.mean(sent, axis=0) - truth) < 0.2 * each


def test_bfloat16_rounds_to_nearest_and_ties_to_even() -> None:
    """As torch does."""
    torch = pytest.importorskip("torch")
    bits = np.random.default_rng(0).integers(0, 2**32, 100_000, dtype=np.uint32)
    bits[:2] = 0x3F808000, 0x3F818000
    numbers = bits.view(np.float32)
    numbers = numbers[np.isfinite(numbers) & (np.abs(numbers) < 3.3e38)]
    expected = torch.from_numpy(numbers).bfloat16().float().numpy()
    assert there_and_back("bfloat16", numbers).tobytes() == expected.tobytes()


def test_top_k_keeps_the_largest_of_each_chunk() -> None:
    """64 of 4,096; of equal ones the first; fewer if the others are zeros."""
    numbers = np.zeros(3 * 4096, np.float32)
    numbers[:4096] = np.random.default_rng(1).permutation(4096) - 2047.5
    numbers[4096 : 4096 + 100] = -2.0
    numbers[2 * 4096 + 9] = 1.0
    chunks = there_and_back("topk", numbers).reshape(3, 4096)
    kept = np.flatnonzero(chunks[0])
    assert set(kept) == set(np.argsort(-np.abs(numbers[:4096]), kind="stable")[:64])
    assert (np.sign(chunks[0]) == np.sign(numbers[:4096]))[kept].all()
    assert len(np.unique(np.abs(chunks[0][kept]))) == 2
    np.testing.assert_array_equal(chunks[1], np.where(np.arange(4096) < 64, -2, 0))
    np.testing.assert_array_equal(np.flatnonzero(chunks[2]), [9])


@pytest.mark.parametrize(
    ("name", "fewer"),
    [
        ("float32", 1),
        ("float16", 2),
        ("int8", 3.99),
        ("int3", 10.24),
        ("terngrad", 18.29),
        ("ternary", 19.8),
        ("topk", 140),
    ],
)
def test_how_many_times_fewer_bytes_there_are(name: str, fewer: float) -> None:
    """Than float32's, for a large tensor."""
    assert 4 * 2**20 / CODECS[name].size(2**20) == pytest.approx(fewer, rel=2e-3)


@every_codec
@given(data=st.data())
def test_other_bytes_do_no_harm(name: str, data: st.DataObject) -> None:
    """They are some numbers, or NaN, which is looked for; nothing is read or written beyond."""
    count = data.draw(st.sampled_from([1, 64, 100, 4096, 5000]))
    seed = data.draw(st.integers(0, 2**32))
    noise = np.random.default_rng(seed).integers(0, 256, CODECS[name].size(count), np.uint8)
    decoded(name, noise, count)


def test_foreign_bytes_decode_to_nan() -> None:
    """Which the sum refuses."""
    encoded = CODECS["topk"].encode(np.ones(64, np.float32))
    encoded[-1] |= 15
    assert np.isnan(decoded("topk", encoded, 64)).all()
    encoded = CODECS["ternary"].encode(np.ones(64, np.float32))
    encoded[5] = 243
    assert np.isnan(decoded("ternary", encoded, 64)).any()
    for name in ("int3", "terngrad"):
        encoded = CODECS[name].encode(np.ones(64, np.float32))
        encoded[2:] = 255
        assert np.isnan(decoded(name, encoded, 64)).all()
