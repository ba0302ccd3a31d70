"""Resizing images."""

from __future__ import annotations

import numpy as np

from downpour.learning.datasets.images import resized


def test_a_plain_image_stays_plain() -> None:
    """Every size of an image of one color is of that color."""
    images = np.full((3, 10, 14, 3), 77, np.uint8)
    for size in (4, 20):
        assert np.array_equal(resized(images, size), np.full((3, size, size, 3), 77))


def test_shrinking_averages_rather_than_skips() -> None:
    """A fine checkerboard becomes gray: the antialiasing is on."""
    board = (np.indices((32, 32)).sum(axis=0) % 2 * 255).astype(np.uint8)[None, :, :, None]
    small = resized(board, 8)
    assert small.min() > 100
    assert small.max() < 155
