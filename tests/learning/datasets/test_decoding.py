"""Limits, layouts and statistics, the same for every source."""

from __future__ import annotations

import math
import statistics
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.learning.datasets import decoded, source
from downpour.learning.datasets.source import Arrays


def decode(x: NDArray[Any], y: NDArray[Any], **fields: Any) -> SimpleNamespace:
    """Decode a set whose test part is its training part."""
    arrays = Arrays(train_x=x, train_y=y, test_x=x, test_y=y)
    facts, named = decoded(arrays, Spec.make(fields))
    return SimpleNamespace(**facts, **named)


def test_images_with_channels_first_are_turned(rng_images: NDArray[np.uint8]) -> None:
    """[n, c, h, w] and [n, h, w, c] of the same images decode to the same."""
    last = decode(rng_images, np.arange(6))
    first = decode(np.ascontiguousarray(rng_images.transpose(0, 3, 1, 2)), np.arange(6))
    assert np.array_equal(last.train_x, first.train_x)


@pytest.fixture
def rng_images() -> NDArray[np.uint8]:
    """Six color images of 9 x 11."""
    return np.random.default_rng(1).integers(0, 256, (6, 9, 11, 3), dtype=np.uint8)


def test_image_statistics_are_those_of_the_channels(rng_images: NDArray[np.uint8]) -> None:
    """Mean and standard deviation agree with numpy's own."""
    found = decode(rng_images, np.arange(6))
    assert found.mean == pytest.approx(rng_images.mean(axis=(0, 1, 2)).tolist())
    assert found.std == pytest.approx(rng_images.std(axis=(0, 1, 2)).tolist())


@pytest.mark.parametrize("block", [1, 250, 1000])
def test_image_statistics_are_exact(
    rng_images: NDArray[np.uint8], monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    """Whole numbers, some images at a time: no processor's rounding decides the key of the data."""
    monkeypatch.setattr(source, "_ROWS_BYTES", block)
    found = decode(rng_images, np.arange(6))
    for channel, (mean, std) in enumerate(zip(found.mean, found.std, strict=True)):
        values = rng_images[..., channel].ravel().tolist()
        assert mean == float(statistics.mean(map(Fraction, values)))
        assert std == math.sqrt(statistics.pvariance(map(Fraction, values)))


def test_numbers_are_standardized_by_feature() -> None:
    """One mean and deviation a feature; a constant feature keeps a deviation of one."""
    x = np.array([[1.0, 5.0], [3.0, 5.0]])
    found = decode(x, np.array([0, 1]))
    assert found.mean == (2.0, 5.0)
    assert found.std == (1.0, 1.0)


def test_limits_take_the_first_and_keep_the_classes() -> None:
    """The number of classes is the whole set's, so that a limit does not change the network."""
    found = decode(np.zeros((10, 2)), np.arange(10), train_limit=3, test_limit=2)
    assert (len(found.train_x), len(found.test_x), found.classes) == (3, 2, 10)


def test_resizing_what_is_no_image_is_refused() -> None:
    """The refusal names image_size."""
    with pytest.raises(SpecError, match="image_size"):
        decode(np.zeros((10, 2)), np.arange(10), image_size=8)


def test_parts_that_differ_are_refused() -> None:
    """Training and test examples must have one shape."""
    arrays = Arrays(
        train_x=np.zeros((4, 2)), train_y=np.arange(4), test_x=np.zeros((4, 3)), test_y=np.arange(4)
    )
    with pytest.raises(SpecError, match="differ in shape"):
        decoded(arrays, Spec.make({}))


def test_one_class_is_nothing_to_learn() -> None:
    """Every network would be right at once; where a limit is the cause, the limit is named."""
    with pytest.raises(SpecError, match=r"dataset = .* all 6 training examples have class 3"):
        decode(np.zeros((6, 2)), np.full(6, 3))
    with pytest.raises(SpecError, match=r"train_limit = 2: all 2 training examples have class 0"):
        decode(np.zeros((6, 2)), np.array([0, 0, 1, 1, 2, 2]), train_limit=2)


@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_amounts_are_not_taken_for_classes(dtype: type) -> None:
    """The diabetes set's targets are whole numbers from 25 to 346, nearly as many as examples."""
    amounts: NDArray[Any] = (np.arange(442) * 37 % 322 + 25).astype(dtype)
    with pytest.raises(SpecError, match=r"up to 346 in 884 examples, which would make 347 classes"):
        decode(np.zeros((442, 10)), amounts)


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (np.arange(100.0, dtype=np.float16) % 3, 3),
        (np.arange(100) % 10 * 2, 19),
        (np.arange(6), 6),
        (np.array([True, False] * 4), 2),
    ],
)
def test_class_numbers_are_taken_as_they_are(labels: NDArray[Any], classes: int) -> None:
    """Floats without gaps, integers with gaps that come up often, a few of each, booleans."""
    assert decode(np.zeros((len(labels), 2)), labels).classes == classes


def test_classes_without_examples_are_remarked() -> None:
    """Classes without training examples; else nothing."""
    x = np.zeros((40, 2))
    assert decode(x, np.arange(40) % 4).remarks == ()
    [missing] = decode(x, np.arange(40) % 10, train_limit=7).remarks
    assert missing == "3 of 10 classes have no training examples: 7, 8, 9"
