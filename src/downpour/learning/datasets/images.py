"""Folders of images: their class folders, and their pixels.

Class numbers follow the sorted names of the folders. Hidden files and folders, and the ones of
operating systems, do not count. Of a file with several pages or frames, the first counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.learning.blame import message_of
from downpour.learning.datasets import source
from downpour.learning.datasets.source import Arrays

IMAGE_SUFFIXES = frozenset(
    {
        *(".png", ".apng", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".dib", ".webp", ".gif"),
        *(".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".j2k", ".tga", ".pcx"),
        *(".avif", ".ico"),
    }
)
"""Images that Pillow reads (.avif: 11.3). A list, so that all machines find the same files."""
_OF_SYSTEMS = frozenset(
    {
        *("__MACOSX", "@eaDir", "lost+found", "$RECYCLE.BIN", "System Volume Information"),
        *("Thumbs.db", "desktop.ini"),
    }
)
PARTS = {
    "train": "train",
    "training": "train",
    "test": "test",
    "testing": "test",
    "val": "val",
    "valid": "val",
    "validation": "val",
}
"""The part of a dataset that a folder's name, in small letters, stands for."""
_GRAY_MODES = frozenset({"1", "L", "LA"})


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """The images of class folders with their class numbers, and remarks about left-out files."""

    paths: list[Path]
    labels: NDArray[np.int64]
    remarks: tuple[str, ...] = ()

    def taken(self, order: NDArray[np.int64]) -> ImageFiles:
        """Return some of the files, in this order."""
        return ImageFiles([self.paths[index] for index in order], self.labels[order])

    def shuffled(self) -> ImageFiles:
        """Return all files in a random order, which is always the same."""
        return self.taken(source.random_order(len(self.paths), len(self.paths)))


def class_folders(root: Path) -> list[str]:
    """Return the sorted names of the class folders."""
    return [entry.name for entry in entries(root) if entry.is_dir()]


def images_in(root: Path, classes: list[str]) -> ImageFiles:
    """Return the images of each class, sorted by name; a class without a folder has none."""
    paths: list[Path] = []
    labels: list[int] = []
    others: list[Path] = []
    for label, name in enumerate(classes):
        folder = root / name
        inside = entries(folder) if folder.is_dir() else []
        images = [path for path in inside if is_image(path)]
        others += [path for path in inside if not is_image(path)]
        paths += images
        labels += [label] * len(images)
    others += [entry for entry in entries(root) if not entry.is_dir()]
    return ImageFiles(paths, np.asarray(labels, dtype=np.int64), tuple(_left_out(root, others)))


def check_every_class(root: Path, classes: list[str], *, field: str) -> None:
    """Refuse a class folder without images, and say what is in it."""
    for name in classes:
        inside = entries(root / name)
        if any(is_image(entry) for entry in inside):
            continue
        deeper = next((entry for entry in inside if _holds_images(entry)), None)
        if deeper is not None:
            where = f"{deeper.parent.name}/{deeper.name}/"
            accepted = f"holds no images itself; they are one folder deeper, as in {where}"
        else:
            found = ", ".join(_left_out(root, inside)) or "it is empty"
            accepted = f"holds no images, so it is no class: {found}"
        raise SpecError(field, f"{root.name}/{name}", accepted)


def is_image(path: Path) -> bool:
    """Whether a name is one of an image that we read."""
    return path.suffix.lower() in IMAGE_SUFFIXES


def entries(folder: Path) -> list[Path]:
    """Return what a user put into a folder, sorted; systems put more there, often hidden."""
    found = (entry for entry in folder.iterdir() if entry.name not in _OF_SYSTEMS)
    return sorted(entry for entry in found if not entry.name.startswith("."))


def _holds_images(entry: Path) -> bool:
    return entry.is_dir() and any(is_image(inner) for inner in entries(entry))


def _left_out(root: Path, others: list[Path]) -> Iterator[str]:
    """Describe files that are not read; folders count if they hold images."""
    named = ((path, "/".join(path.relative_to(root).parts)) for path in others)
    deeper = [name for path, name in named if _holds_images(path)]
    files = [path for path in others if not path.is_dir()]
    if files:
        kinds = Counter(path.suffix.lower() or "no suffix" for path in files)
        counts = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(5))
        example = "/".join(files[0].relative_to(root).parts)
        if all(is_image(path) for path in files):
            yield f"images beside the class folders are left out: {counts} (such as {example})"
        else:
            yield f"files that are not read as examples: {counts} (such as {example})"
    if deeper:
        yield f"images in folders inside a class are left out: those of {', '.join(deeper[:3])}"


def is_gray(path: Path) -> bool:
    """Whether an image has one channel."""
    with _opened(path) as image:
        return image.mode in _GRAY_MODES


def pixels_of(path: Path, channels: int, *, field: str = "data_path") -> NDArray[np.uint8]:
    """Return one image as [1, h, w, c]; c is 1 (gray) or 3 (color). Errors name the `field`."""
    with _opened(path, field) as image:
        pixels = np.asarray(image.convert("L" if channels == 1 else "RGB"), dtype=np.uint8)
    return pixels.reshape(1, *pixels.shape[:2], channels)


def place_of(path: Path) -> str:
    """Return an image's name with the folder of its class: every class may have a 3.jpg."""
    part, name, file = ("", "", *path.parts)[-3:]
    return "/".join((part, name, file) if part.lower() in PARTS else (name, file)).lstrip("/")


def _check_depth(image: Any, path: Path, field: str) -> None:
    """Refuse more than 8 bits a channel: Pillow would cut their brightness off at 255."""
    if image.mode[0] in "IF":
        raise SpecError(field, place_of(path), "has more than 8 bits per channel; convert it to 8")


@contextmanager
def _opened(path: Path, field: str = "data_path") -> Iterator[Any]:
    """Open an image; an exception in the block becomes a SpecError that names its file."""
    from PIL import Image, __version__

    try:
        with Image.open(path) as image:
            _check_depth(image, path, field)
            yield image
    except SpecError:
        raise
    except Exception as error:  # noqa: BLE001 - Pillow's decoders raise anything about damage
        reason = message_of(error)
        if (suffix := path.suffix.lower()) not in Image.registered_extensions():
            reason = f"this machine's Pillow {__version__} reads no {suffix} files"
        raise SpecError(field, place_of(path), f"cannot be decoded: {reason}") from None


def resized(images: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Squeeze images [n, h, w, c] into squares of `size` pixels, bilinear and antialiased."""
    from torch import from_numpy
    from torch.nn.functional import interpolate

    count, height, width, channels = images.shape
    if height == width == size:
        return images

    def squeezed(block: NDArray[np.uint8]) -> NDArray[np.uint8]:
        part = from_numpy(block.astype(np.float32)).permute(0, 3, 1, 2)
        smooth = interpolate(part, (size, size), mode="bilinear", antialias=True)
        pixels: NDArray[np.uint8] = smooth.round_().clamp_(0, 255).byte().numpy()
        return pixels.transpose(0, 2, 3, 1)

    blocks = (squeezed(images[rows]) for rows in source.row_blocks(images))
    return source.stacked(blocks, (count, size, size, channels), np.uint8)


_ACCEPTED = "must be a folder that holds <class>/ or train/<class>/ and test/<class>/"


class Folder:
    """Images by class under `data_path`; class numbers follow the sorted folder names.

    The parts may be called `training/` and `testing/`, and in any letters. Without a test part,
    `val/` is one. Otherwise it is left alone. Without both, a fifth of each class is held out,
    always the same. The files are taken in a seeded random order, so that a limit takes a fair
    sample; only as many as the limits allow are decoded. The images are gray if all of them are,
    and color otherwise. All that is left out becomes a remark, and a class folder without images is
    refused.
    """

    def check(self, spec: Spec, data_dir: Path | None) -> None:
        """Refuse a folder that is not there, or holds no images in class folders."""
        _parts_of(source.named_path(spec, data_dir))

    def find(self, spec: Spec, data_dir: Path | None, downloads: Path) -> source.SourceFiles:
        """List the images that the limits leave."""
        del downloads
        found = _found(_parts_of(source.named_path(spec, data_dir)))
        limited = (found.train, spec.train_limit), (found.test, spec.test_limit)
        train, test = (ImageFiles(f.paths[:limit], f.labels[:limit]) for f, limit in limited)
        files = source.fingerprint(train.paths + test.paths, field="data_path")
        return source.SourceFiles(
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
    classes: tuple[str, ...]
    train: ImageFiles
    test: ImageFiles
    remarks: tuple[str, ...]


def has_test_part(root: Path) -> bool:
    """Whether a folder of images says which of them are for tests."""
    return _parts_of(root).test is not None


def _parts_of(root: Path) -> _Parts:
    """Tell the parts of a dataset from its classes, by the names of the folders."""
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
        train, test = map(whole.taken, source.held_out(whole.labels, len(whole.paths)))
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
    return _Found(tuple(classes), whole.shuffled(), measured.shuffled(), remarks)


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
    """Decode images into bytes [n, h, w, channels], as squares of `size` pixels if given."""

    def decoded(path: Path) -> NDArray[np.uint8]:
        pixels = pixels_of(path, channels)
        pixels = pixels if size is None else resized(pixels, size)
        if pixels.shape[1:] != shape:
            accepted = f"is required, because {place_of(path)} differs in size"
            raise SpecError("image_size", size, accepted)
        return pixels

    shape = (1, 1, channels)
    if paths:
        shape = pixels_of(paths[0], channels).shape[1:] if size is None else (size, size, channels)
    return source.stacked(map(decoded, paths), (len(paths), *shape), np.uint8)
