"""Images in folders, one folder a class: `train/<class>/` and `test/<class>/`, or `<class>/` alone.

Without a test part a fifth of each class is held out, always the same. The files are taken in a
seeded random order, so that a limit takes a fair sample; only as many as the limits allow are
decoded. The images are gray if all of them are, and color otherwise. A validation part (`val/`) is
left alone, and so are hidden files and folders, which some systems leave in archives.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from downpour.datasets.resizing import resized
from downpour.datasets.room import check_room
from downpour.datasets.seeding import held_out, random_order
from downpour.datasets.source import Arrays, SourceFiles, fingerprint, named_path
from downpour.errors import SpecError
from downpour.spec import Spec

_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp"})
_GRAY_MODES = frozenset({"1", "L", "LA"})


@dataclass(frozen=True, slots=True)
class _Part:
    """Files and their class numbers."""

    paths: list[Path]
    labels: NDArray[np.int64]

    def taken(self, order: NDArray[np.int64]) -> _Part:
        return _Part([self.paths[index] for index in order], self.labels[order])


class Folder:
    """Images by class under `data_path`; class numbers follow the sorted folder names."""

    def check(self, spec: Spec, data_dir: Path | None) -> None:
        """Refuse a folder that is not there, or holds no images in class folders."""
        root = named_path(spec, data_dir)
        if not root.is_dir() or not _class_folders(_train_root(root)):
            raise SpecError(
                "data_path",
                spec.data_path,
                "a folder is needed that holds <class>/ or train/<class>/ and test/<class>/",
            )

    def find(self, spec: Spec, data_dir: Path | None, downloads: Path) -> SourceFiles:
        """List the images that the limits leave."""
        del downloads
        self.check(spec, data_dir)
        train, test = _parts(named_path(spec, data_dir))
        train, test = _limited(train, spec.train_limit), _limited(test, spec.test_limit)
        return SourceFiles(
            fingerprint=fingerprint(train.paths + test.paths, field="data_path"),
            read=lambda: _read(train, test, spec.image_size),
        )


def _train_root(root: Path) -> Path:
    return root / "train" if (root / "train").is_dir() and (root / "test").is_dir() else root


def _class_folders(root: Path) -> list[str]:
    return sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not _hidden(entry))


def _hidden(path: Path) -> bool:
    return path.name.startswith(".")


def _parts(root: Path) -> tuple[_Part, _Part]:
    train_root = _train_root(root)
    classes = _class_folders(train_root)
    whole = _listed(train_root, classes)
    if train_root == root:
        train_order, test_order = held_out(whole.labels, len(whole.paths))
        return whole.taken(train_order), whole.taken(test_order)
    for name in _class_folders(root / "test"):
        if name not in classes:
            raise SpecError("data_path", f"test/{name}", "train/ has no such class")
    test = _listed(root / "test", classes)
    return _shuffled(whole), _shuffled(test)


def _shuffled(part: _Part) -> _Part:
    return part.taken(random_order(len(part.paths), len(part.paths)))


def _listed(root: Path, classes: list[str]) -> _Part:
    paths: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        folder = root / name
        files = sorted(folder.iterdir()) if folder.is_dir() else []
        images = [path for path in files if path.suffix.lower() in _SUFFIXES and not _hidden(path)]
        paths += images
        labels += [label] * len(images)
    return _Part(paths, np.asarray(labels, dtype=np.int64))


def _limited(part: _Part, limit: int | None) -> _Part:
    return _Part(part.paths[:limit], part.labels[:limit])


def _read(train: _Part, test: _Part, size: int | None) -> Arrays:
    channels = 1 if all(_is_gray(path) for path in train.paths + test.paths) else 3
    return Arrays(
        train_x=_decoded(train.paths, channels, size),
        train_y=train.labels,
        test_x=_decoded(test.paths, channels, size),
        test_y=test.labels,
    )


def _is_gray(path: Path) -> bool:
    with _opened(path) as image:
        if image.mode[0] in "IF":
            raise SpecError("data_path", path.name, "has more than 8 bits a channel; 8 are needed")
        return image.mode in _GRAY_MODES


def _decoded(paths: list[Path], channels: int, size: int | None) -> NDArray[np.uint8]:
    images: NDArray[np.uint8] | None = None
    for number, path in enumerate(paths):
        pixels = _pixels(path, channels)
        pixels = pixels if size is None else resized(pixels, size)
        if images is None:
            shape = len(paths), *pixels.shape[1:]
            check_room(shape, 1, field="data_path", value=path.name)
            images = np.empty(shape, dtype=np.uint8)
        if pixels.shape[1:] != images.shape[1:]:
            raise SpecError("image_size", size, f"must be given, as {path.name} differs in size")
        images[number] = pixels[0]
    return np.zeros((0, 1, 1, channels), dtype=np.uint8) if images is None else images


def _pixels(path: Path, channels: int) -> NDArray[np.uint8]:
    """Return one image as [1, h, w, c]."""
    with _opened(path) as image:
        pixels = np.asarray(image.convert("L" if channels == 1 else "RGB"), dtype=np.uint8)
    return pixels.reshape(1, *pixels.shape[:2], channels)


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
        raise SpecError("data_path", path.name, f"cannot be decoded: {reason}") from None
