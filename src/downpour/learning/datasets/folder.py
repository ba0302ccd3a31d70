"""Images in one folder per class: `train/<class>/` and `test/<class>/`, or just `<class>/`.

The parts may be called `training/` and `testing/`, and in any letters. Without a test part,
`val/` is one. Otherwise it is left alone. Without both, a fifth of each class is held out, always
the same. The files are taken in a seeded random order, so that a limit takes a fair sample; only as
many as the limits allow are decoded. The images are gray if all of them are, and color otherwise.
All that is left out becomes a remark, and a class folder without images is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.host.paths import is_object_store
from downpour.learning.datasets.fetched import check_there
from downpour.learning.datasets.image_files import (
    PARTS,
    ImageFiles,
    check_every_class,
    class_folders,
    images_in,
    is_gray,
    is_image,
    pixels_of,
    place_of,
)
from downpour.learning.datasets.resizing import resized
from downpour.learning.datasets.room import check_room
from downpour.learning.datasets.seeding import held_out, random_order
from downpour.learning.datasets.source import Arrays, SourceFiles, fingerprint, named_path

_ACCEPTED = "must be a folder that holds <class>/ or train/<class>/ and test/<class>/"


class Folder:
    """Images by class under `data_path`; class numbers follow the sorted folder names."""

    def check(self, spec: Spec, data_dir: Path | None) -> None:
        """Refuse a folder that is not there, or holds no images in class folders."""
        if is_object_store(spec.data_path):
            check_there("data_path", spec.data_path or "")
            return
        _parts_of(named_path(spec, data_dir))

    def find(self, spec: Spec, data_dir: Path | None, downloads: Path) -> SourceFiles:
        """List the images that the limits leave."""
        del downloads
        found = _found(_parts_of(named_path(spec, data_dir)))
        train, test = _limited(found.train, spec.train_limit), _limited(found.test, spec.test_limit)
        files = fingerprint(train.paths + test.paths, field="data_path")
        return SourceFiles(
            # The last two decide about facts of the prepared dataset, with any limits.
            fingerprint=(*files, *found.classes, *found.remarks),
            read=lambda: _read(train, test, found, spec.image_size),
        )


@dataclass(frozen=True, slots=True)
class _Parts:
    """The folders that hold class folders; without `test`, a fifth of `train` is held out."""

    train: Path
    test: Path | None
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Found:
    """The images of both parts."""

    classes: tuple[str, ...]
    train: ImageFiles
    test: ImageFiles
    remarks: tuple[str, ...]


def has_test_part(root: Path) -> bool:
    """Whether a folder of images says which of them are for tests."""
    return _parts_of(root).test is not None


def _parts_of(root: Path) -> _Parts:
    """Tell the parts of a dataset from its classes, by the names of the folders.

    Raises:
        SpecError: these are no folders of a dataset; says what is there.
    """
    names = class_folders(root) if root.is_dir() else []
    if not names:
        images = sum(map(is_image, root.iterdir())) if root.is_dir() else 0
        found = f"; it holds {images} images and no folders" if images else ""
        raise SpecError("data_path", str(root), _ACCEPTED + found)
    known = {PARTS[name.lower()]: root / name for name in names if name.lower() in PARTS}
    train, test, val = (known.get(part) for part in ("train", "test", "val"))
    others = [name for name in names if root / name not in known.values()]
    measured = test or val
    if train is None:
        if known and not others and any(map(class_folders, known.values())):
            there = " and ".join(f"{path.name}/" for path in known.values())
            raise SpecError("data_path", str(root), f"holds {there}, but no train/ beside it")
        return _Parts(root, None, ())
    if not class_folders(train) and measured is not None:
        accepted = f"holds no <class>/ folders, but {measured.name}/ is beside it"
        raise SpecError("data_path", f"{root.name}/{train.name}", accepted)
    if not class_folders(train) or (measured is None and others):
        return _Parts(root, None, ())  # "train" is the name of a class
    return _Parts(train, measured, tuple(_choices(train, test, val, others)))


def _choices(train: Path, test: Path | None, val: Path | None, others: list[str]) -> Iterator[str]:
    """Say which parts the folders became, if a reader may expect others."""
    if test is None and val is not None:
        yield f"{val.name}/ is the test part, because there is no test/"
    elif test is not None and val is not None:
        yield f"{val.name}/ is left out: {test.name}/ measures the model"
    elif test is None:
        yield f"no test/ is beside {train.name}/, so a fifth of each class is held out"
    if others:
        yield f"left out beside {train.name}/: {', '.join(f'{name}/' for name in others[:5])}"


def _found(parts: _Parts) -> _Found:
    classes = class_folders(parts.train)
    check_every_class(parts.train, classes, field="data_path")
    whole = images_in(parts.train, classes)
    remarks = parts.remarks + whole.remarks
    if parts.test is None:
        train, test = map(whole.files.taken, held_out(whole.files.labels, len(whole.files.paths)))
        if not test.paths:
            count = len(train.paths)
            remarks += (f"a fifth of each class is held out for tests: {count} images are too few",)
        return _Found(tuple(classes), train, test, remarks)
    for name in class_folders(parts.test):
        if name not in classes:
            accepted = f"{parts.train.name}/ has no such class"
            raise SpecError("data_path", f"{parts.test.name}/{name}", accepted)
    measured = images_in(parts.test, classes)
    remarks += tuple(f"{parts.test.name}/: {remark}" for remark in measured.remarks)
    return _Found(tuple(classes), _shuffled(whole.files), _shuffled(measured.files), remarks)


def _shuffled(part: ImageFiles) -> ImageFiles:
    return part.taken(random_order(len(part.paths), len(part.paths)))


def _limited(part: ImageFiles, limit: int | None) -> ImageFiles:
    return ImageFiles(part.paths[:limit], part.labels[:limit])


def _read(train: ImageFiles, test: ImageFiles, found: _Found, size: int | None) -> Arrays:
    channels = 1 if all(is_gray(path) for path in train.paths + test.paths) else 3
    return Arrays(
        train_x=decoded_images(train.paths, channels, size),
        train_y=train.labels,
        test_x=decoded_images(test.paths, channels, size),
        test_y=test.labels,
        classes=found.classes,
        remarks=found.remarks,
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
