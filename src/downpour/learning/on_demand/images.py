"""A folder of images by class; each worker decodes only the images that it needs.

A worker keeps decoded images up to a bound. If the images of a shard fit, epochs after the first
decode nothing. The first images stay: each epoch takes every image once, in another order, and then
no other rule would find more of them. Pixels are kept as they are before augmentation, so no result
changes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from downpour.base.errors import SpecError
from downpour.host.extras import require
from downpour.learning.datasets.fetched import local_path
from downpour.learning.datasets.image_files import (
    check_every_class,
    class_folders,
    images_in,
    pixels_of,
)
from downpour.learning.datasets.resizing import resized

log = logging.getLogger(__name__)

_MEGABYTE = 1 << 20


class ImageFolder:
    """Example i is an image [c, h, w] and its class number, which follows the folders' names.

    Args:
        root: the folder that holds a folder for each class.
        size: pixels of a side; each image is squeezed into a square once it is decoded. Absent: as
            it is.
        channels: 3 (color) or 1 (gray).
        transform: takes the image as uint8 [c, h, w], such as what `transforms` makes. Absent:
            float32 from 0 to 1.
        cache_megabytes: how much of the decoded images a process keeps.

    Attributes:
        classes: the names of the classes.
        labels: the class number of each image, for a task's `labels`.
        remarks: left-out files, one line each; the log has them as warnings.

    Raises:
        SpecError: no images are there, or none of a class; from `[i]`: the image cannot be decoded.
        MissingPackage: Pillow is not installed.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        size: int | None = None,
        channels: int = 3,
        transform: Callable[[Tensor], Any] | None = None,
        cache_megabytes: int = 512,
    ) -> None:
        require("a folder of images", "vision")
        folder = local_path("root", root)
        self.classes = class_folders(folder) if folder.is_dir() else []
        if not self.classes:
            raise SpecError("root", str(root), "must be a folder that holds <class>/<image>")
        check_every_class(folder, self.classes, field="root")
        found = images_in(folder, self.classes)
        self.remarks = found.remarks
        for remark in self.remarks:
            log.warning("%s: %s", root, remark)
        self.labels: list[int] = found.files.labels.tolist()
        self._paths = found.files.paths
        self._size = size
        self._channels = channels
        self._transform = transform or _as_share
        self._kept: dict[Path, NDArray[np.uint8]] = {}
        self._room = cache_megabytes * _MEGABYTE

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image = torch.tensor(self._pixels(self._paths[index]))
        return self._transform(image), self.labels[index]

    def _pixels(self, path: Path) -> NDArray[np.uint8]:
        kept = self._kept.get(path)
        if kept is not None:
            return kept
        pixels = pixels_of(path, self._channels)
        pixels = pixels if self._size is None else resized(pixels, self._size)
        image = np.ascontiguousarray(pixels[0].transpose(2, 0, 1))
        if image.nbytes <= self._room:
            self._room -= image.nbytes
            self._kept[path] = image
        return image


def _as_share(image: Tensor) -> Tensor:
    return image.float() / 255
