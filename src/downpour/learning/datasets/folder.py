"""Images in one folder per class: `train/<class>/` and `test/<class>/`, or just `<class>/`.

Without a test part a fifth of each class is held out, always the same. The files are taken in a
seeded random order, so that a limit takes a fair sample; only as many as the limits allow are
decoded. The images are gray if all of them are, and color otherwise. A validation part (`val/`) is
left alone.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.host.paths import is_object_store
from downpour.learning.datasets.fetched import check_there
from downpour.learning.datasets.image_files import (
    ImageFiles,
    class_folders,
    images_in,
    is_gray,
    pixels_of,
    place_of,
)
from downpour.learning.datasets.resizing import resized
from downpour.learning.datasets.room import check_room
from downpour.learning.datasets.seeding import held_out, random_order
from downpour.learning.datasets.source import Arrays, SourceFiles, fingerprint, named_path


class Folder:
    """Images by class under `data_path`; class numbers follow the sorted folder names."""

    def check(self, spec: Spec, data_dir: Path | None) -> None:
        """Refuse a folder that is not there, or holds no images in class folders."""
        if is_object_store(spec.data_path):
            check_there("data_path", spec.data_path or "")
            return
        self._checked(spec, data_dir)

    def _checked(self, spec: Spec, data_dir: Path | None) -> Path:
        root = named_path(spec, data_dir)
        if not root.is_dir() or not class_folders(_train_root(root)):
            raise SpecError(
                "data_path",
                spec.data_path,
                "must be a folder that holds <class>/ or train/<class>/ and test/<class>/",
            )
        return root

    def find(self, spec: Spec, data_dir: Path | None, downloads: Path) -> SourceFiles:
        """List the images that the limits leave."""
        del downloads
        train, test = _parts(self._checked(spec, data_dir))
        train, test = _limited(train, spec.train_limit), _limited(test, spec.test_limit)
        return SourceFiles(
            fingerprint=fingerprint(train.paths + test.paths, field="data_path"),
            read=lambda: _read(train, test, spec.image_size),
        )


def _train_root(root: Path) -> Path:
    return root / "train" if (root / "train").is_dir() and (root / "test").is_dir() else root


def _parts(root: Path) -> tuple[ImageFiles, ImageFiles]:
    train_root = _train_root(root)
    classes = class_folders(train_root)
    whole = images_in(train_root, classes)
    if train_root == root:
        train_order, test_order = held_out(whole.labels, len(whole.paths))
        return whole.taken(train_order), whole.taken(test_order)
    for name in class_folders(root / "test"):
        if name not in classes:
            raise SpecError("data_path", f"test/{name}", "train/ has no such class")
    test = images_in(root / "test", classes)
    return _shuffled(whole), _shuffled(test)


def _shuffled(part: ImageFiles) -> ImageFiles:
    return part.taken(random_order(len(part.paths), len(part.paths)))


def _limited(part: ImageFiles, limit: int | None) -> ImageFiles:
    return ImageFiles(part.paths[:limit], part.labels[:limit])


def _read(train: ImageFiles, test: ImageFiles, size: int | None) -> Arrays:
    channels = 1 if all(is_gray(path) for path in train.paths + test.paths) else 3
    return Arrays(
        train_x=decoded_images(train.paths, channels, size),
        train_y=train.labels,
        test_x=decoded_images(test.paths, channels, size),
        test_y=test.labels,
    )


def decoded_images(paths: list[Path], channels: int, size: int | None) -> NDArray[np.uint8]:
    """Decode images into bytes [n, h, w, channels], resized to squares of `size` pixels if given.

    Raises:
        SpecError: one cannot be decoded, or they differ in size.
    """
    images: NDArray[np.uint8] | None = None
    for number, path in enumerate(paths):
        pixels = pixels_of(path, channels)
        pixels = pixels if size is None else resized(pixels, size)
        if images is None:
            shape = len(paths), *pixels.shape[1:]
            check_room(shape, 1, field="data_path", value=place_of(path))
            images = np.empty(shape, dtype=np.uint8)
        if pixels.shape[1:] != images.shape[1:]:
            raise SpecError(
                "image_size", size, f"is required, because {place_of(path)} differs in size"
            )
        images[number] = pixels[0]
    return np.zeros((0, 1, 1, channels), dtype=np.uint8) if images is None else images
