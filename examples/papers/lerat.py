"""Pictures in place of Lerat et al.'s photos of fire and smoke, which are not public.

What a step costs depends on the pictures' size alone, so these serve to measure it; what a network
learns of them says nothing about fires. The same options make the same pictures, on any machine.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

CLASSES = ("fire", "smoke", "neither")
HEIGHT, WIDTH = 240, 320
TEST_IMAGES = 12
_PATCHES = 8, 8
_RADIUS = 100.0
_COLOURS = {"fire": (255.0, 110.0, 20.0), "smoke": (170.0, 170.0, 175.0)}


def fire_and_smoke(
    images: int = 192, seed: int = 0
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.uint8], NDArray[np.int64]]:
    """Make pictures of patched ground, on a third of them a glow and on a third a cloud.

    Args:
        images: How many to train on; there are twelve more to test with.
        seed: Another one makes other pictures.

    Returns:
        Pictures [n, 240, 320, 3] and classes [n] of `CLASSES`, for training and for testing.
    """
    if images < len(CLASSES):
        raise TypeError(f"images must be at least {len(CLASSES)}")
    labels = np.arange(images + TEST_IMAGES) % len(CLASSES)
    pictures = np.stack([_picture(seed, n, CLASSES[label]) for n, label in enumerate(labels)])
    return pictures[:images], labels[:images], pictures[images:], labels[images:]


def _picture(seed: int, number: int, what: str) -> NDArray[np.uint8]:
    """Make one picture; it depends on nothing but its arguments."""
    # The raw words of PCG64 never change; what is drawn from them may, with numpy's version.
    words = np.random.PCG64(np.random.SeedSequence((seed, number))).random_raw
    rows, columns = _PATCHES
    patches = (words(rows * columns * 3) % 160).reshape(rows, columns, 3)
    picture = np.kron(patches, np.ones((HEIGHT // rows, WIDTH // columns, 1)))
    if what in _COLOURS:
        middle_y, middle_x = words(2) % (HEIGHT, WIDTH)
        y, x = np.ogrid[:HEIGHT, :WIDTH]
        # Plain arithmetic, which rounds alike everywhere.
        distance = ((y - float(middle_y)) ** 2 + (x - float(middle_x)) ** 2) / _RADIUS**2
        strength = np.clip(1 - distance, 0, 1)[..., None]
        picture = (1 - strength) * picture + strength * np.array(_COLOURS[what])
    grain = (words(HEIGHT * WIDTH) % 32).reshape(HEIGHT, WIDTH, 1)
    return np.clip(picture + grain, 0, 255).astype(np.uint8)
