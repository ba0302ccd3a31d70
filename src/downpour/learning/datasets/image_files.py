"""Images in class folders: lists the files, and reads the pixels of one.

Class numbers follow the sorted names of the folders. Hidden files and folders, and the ones of
operating systems, do not count. Of a file with several pages or frames, the
first counts. Nothing here keeps pixels.
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

IMAGE_SUFFIXES = frozenset(
    {
        *(".png", ".apng", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".dib", ".webp", ".gif"),
        *(".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".j2k", ".tga", ".pcx"),
        *(".avif", ".ico"),
    }
)
"""Still images that Pillow decodes on its own. A list, so that all machines find the same files."""
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
    """Files and their class numbers."""

    paths: list[Path]
    labels: NDArray[np.int64]

    def taken(self, order: NDArray[np.int64]) -> ImageFiles:
        """Return some of the files, in this order."""
        return ImageFiles([self.paths[index] for index in order], self.labels[order])


@dataclass(frozen=True, slots=True)
class ClassImages:
    """The images of class folders, and remarks about left-out files, one line each."""

    files: ImageFiles
    remarks: tuple[str, ...]


def class_folders(root: Path) -> list[str]:
    """Return the sorted names of the class folders."""
    return [entry.name for entry in _entries(root) if entry.is_dir()]


def images_in(root: Path, classes: list[str]) -> ClassImages:
    """Return the images of each class, sorted by name; a class without a folder has none."""
    paths: list[Path] = []
    labels: list[int] = []
    others: list[Path] = []
    for label, name in enumerate(classes):
        folder = root / name
        entries = _entries(folder) if folder.is_dir() else []
        images = [path for path in entries if is_image(path)]
        others += [path for path in entries if not is_image(path)]
        paths += images
        labels += [label] * len(images)
    others += [entry for entry in _entries(root) if not entry.is_dir()]
    files = ImageFiles(paths, np.asarray(labels, dtype=np.int64))
    return ClassImages(files, tuple(_left_out(root, others)))


def check_every_class(root: Path, classes: list[str], *, field: str) -> None:
    """Refuse a class folder without images, and say what is in it.

    Raises:
        SpecError: names the first such class.
    """
    for name in classes:
        entries = _entries(root / name)
        if any(is_image(entry) for entry in entries):
            continue
        deeper = next((entry for entry in entries if _holds_images(entry)), None)
        if deeper is not None:
            where = f"{deeper.parent.name}/{deeper.name}/"
            accepted = f"holds no images itself; they are one folder deeper, as in {where}"
        else:
            found = ", ".join(_left_out(root, entries)) or "it is empty"
            accepted = f"holds no images, so it is no class: {found}"
        raise SpecError(field, f"{root.name}/{name}", accepted)


def is_image(path: Path) -> bool:
    """Whether a name is one of an image that we read."""
    return path.suffix.lower() in IMAGE_SUFFIXES


def _entries(folder: Path) -> list[Path]:
    found = (entry for entry in folder.iterdir() if entry.name not in _OF_SYSTEMS)
    return sorted(entry for entry in found if not entry.name.startswith("."))


def _holds_images(entry: Path) -> bool:
    return entry.is_dir() and any(is_image(inner) for inner in _entries(entry))


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
    """Whether an image has one channel.

    Raises:
        SpecError: it cannot be decoded, or has more than 8 bits a channel.
    """
    with _opened(path) as image:
        return image.mode in _GRAY_MODES


def pixels_of(path: Path, channels: int) -> NDArray[np.uint8]:
    """Return one image as [1, h, w, c]; c is 1 (gray) or 3 (color).

    Raises:
        SpecError: it cannot be decoded, or has more than 8 bits a channel.
    """
    with _opened(path) as image:
        pixels = np.asarray(image.convert("L" if channels == 1 else "RGB"), dtype=np.uint8)
    return pixels.reshape(1, *pixels.shape[:2], channels)


def place_of(path: Path) -> str:
    """Return an image's name with the folder of its class: every class may have a 3.jpg."""
    part, name, file = ("", "", *path.parts)[-3:]
    return "/".join((part, name, file) if part.lower() in PARTS else (name, file)).lstrip("/")


def _check_depth(image: Any, path: Path) -> None:
    """Refuse more than 8 bits a channel: Pillow would cut their brightness off at 255."""
    if image.mode[0] in "IF":
        accepted = "has more than 8 bits per channel; convert it to 8"
        raise SpecError("data_path", place_of(path), accepted)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open an image; an exception in the block becomes a SpecError that names its file."""
    try:
        from PIL import Image
    except ImportError:
        raise SpecError("dataset", "folder", "needs pillow; install downpour-sgd[vision]") from None
    try:
        with Image.open(path) as image:
            _check_depth(image, path)
            yield image
    except SpecError:
        raise
    except Exception as error:  # noqa: BLE001 - Pillow's decoders raise anything about damage
        reason = " ".join(str(error).split()) or type(error).__name__
        raise SpecError("data_path", place_of(path), f"cannot be decoded: {reason}") from None
