"""Images in class folders: lists the files, and reads the pixels of one.

Class numbers follow the sorted names of the folders. Hidden files and folders, which some systems
leave in archives, do not count. Nothing here keeps pixels.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from downpour.base.errors import SpecError

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp"})
_GRAY_MODES = frozenset({"1", "L", "LA"})


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """Files and their class numbers."""

    paths: list[Path]
    labels: NDArray[np.int64]

    def taken(self, order: NDArray[np.int64]) -> ImageFiles:
        """Return some of the files, in this order."""
        return ImageFiles([self.paths[index] for index in order], self.labels[order])


def class_folders(root: Path) -> list[str]:
    """Return the sorted names of the class folders."""
    return sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not _hidden(entry))


def images_in(root: Path, classes: list[str]) -> ImageFiles:
    """Return the images of each class, sorted by name; a class without a folder has none."""
    paths: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        folder = root / name
        files = sorted(folder.iterdir()) if folder.is_dir() else []
        images = [
            path for path in files if path.suffix.lower() in IMAGE_SUFFIXES and not _hidden(path)
        ]
        paths += images
        labels += [label] * len(images)
    return ImageFiles(paths, np.asarray(labels, dtype=np.int64))


def is_gray(path: Path) -> bool:
    """Whether an image has one channel.

    Raises:
        SpecError: it cannot be decoded, or has more than 8 bits a channel.
    """
    with _opened(path) as image:
        if image.mode[0] in "IF":
            raise SpecError(
                "data_path", place_of(path), "has more than 8 bits per channel; convert it to 8"
            )
        return image.mode in _GRAY_MODES


def pixels_of(path: Path, channels: int) -> NDArray[np.uint8]:
    """Return one image as [1, h, w, c]; c is 1 (gray) or 3 (color).

    Raises:
        SpecError: it cannot be decoded.
    """
    with _opened(path) as image:
        pixels = np.asarray(image.convert("L" if channels == 1 else "RGB"), dtype=np.uint8)
    return pixels.reshape(1, *pixels.shape[:2], channels)


def place_of(path: Path) -> str:
    """Return an image's name with the folder of its class: every class may have a 3.jpg."""
    part, name, file = ("", "", *path.parts)[-3:]
    return "/".join((part, name, file) if part in {"train", "test"} else (name, file)).lstrip("/")


def _hidden(path: Path) -> bool:
    return path.name.startswith(".")


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open an image; an exception in the block becomes a SpecError that names its file."""
    try:
        from PIL import Image
    except ImportError:
        raise SpecError("dataset", "folder", "needs pillow; install downpour-sgd[vision]") from None
    try:
        with Image.open(path) as image:
            yield image
    except SpecError:
        raise
    except Exception as error:  # noqa: BLE001 - Pillow's decoders raise anything about damage
        reason = " ".join(str(error).split()) or type(error).__name__
        raise SpecError("data_path", place_of(path), f"cannot be decoded: {reason}") from None
