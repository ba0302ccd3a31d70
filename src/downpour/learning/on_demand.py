"""Datasets whose examples a worker reads when it needs them.

`learning/datasets/` decodes examples once for all workers, to arrays in the shared directory. The
classes here leave the data where and as they are. They map a file of tokens into memory, and each
worker decodes the images that it trains on. So the data may be larger than memory and disk
together. Each class has `len()` and `[i]`, as a task's `examples` needs. Example i never changes,
except by random augmentation, which follows from the position in training.
"""

import ast
import logging
import mmap
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from downpour.base.errors import SpecError
from downpour.host.machine import expect_random_reads
from downpour.learning.blame import message_of
from downpour.learning.blocks.formats import token_type, window
from downpour.learning.datasets import images
from downpour.learning.datasets.source import local_path

log = logging.getLogger(__name__)

_MEGABYTE = 1 << 20


# A worker keeps decoded images up to a bound. If the images of a shard fit, epochs after the first
# decode nothing. The first images stay: each epoch takes every image once, in another order, and
# then no other rule would find more of them. Pixels are kept as they are before augmentation, so no
# result changes.
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
        folder = local_path("root", root)
        self.classes = images.class_folders(folder) if folder.is_dir() else []
        if not self.classes:
            raise SpecError("root", str(root), "must be a folder that holds <class>/<image>")
        images.check_every_class(folder, self.classes, field="root")
        found = images.images_in(folder, self.classes)
        self.remarks = found.remarks
        for remark in self.remarks:
            log.warning("%s: %s", root, remark)
        self.labels: list[int] = found.labels.tolist()
        self._paths = found.paths
        self._size = size
        self._channels = channels
        self._transform = transform or (lambda image: image.float() / 255)
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
        pixels = images.pixels_of(path, self._channels, field="root")
        pixels = pixels if self._size is None else images.resized(pixels, self._size)
        image = np.ascontiguousarray(pixels[0].transpose(2, 0, 1))
        if image.nbytes <= self._room:
            self._room -= image.nbytes
            self._kept[path] = image
        return image


class TokenWindows:
    """Example i is a window of tokens and the same window one token later: (x, y), int64 [length].

    Args:
        tokens: the path of a file of plain integers without a header, as `array.tofile` and
            nanoGPT's `prepare.py` write it, or an array [n].
        length: tokens in a window.
        dtype: the integers' type in the file, by its name in numpy; an array has its own.
        stride: tokens from the beginning of a window to that of the next; by default `length`, so
            that an epoch sees every token once.

    Raises:
        SpecError: the file cannot be read, or does not hold a whole window and one token more.
    """

    def __init__(
        self,
        tokens: str | os.PathLike[str] | ArrayLike,
        length: int,
        dtype: str = "uint16",
        stride: int | None = None,
    ) -> None:
        if length < 1 or (stride is not None and stride < 1):
            field, value = ("length", length) if length < 1 else ("stride", stride)
            raise SpecError(field, value, "must be at least 1")
        is_path = isinstance(tokens, str | os.PathLike)
        if isinstance(tokens, str | os.PathLike):
            self._tokens: NDArray[Any] = _mapped(local_path("tokens", tokens), dtype)
        else:
            self._tokens = np.asarray(tokens)
        self._length = length
        self._stride = stride or length
        if self._tokens.ndim != 1 or self._tokens.dtype.kind not in "iu":
            raise SpecError("tokens", type(tokens).__name__, "must be a row of integers")
        if len(self._tokens) <= length:
            accepted = f"has {len(self._tokens)} tokens, but a window needs {length} and one more"
            raise SpecError("tokens", str(tokens) if is_path else "an array", accepted)

    def __len__(self) -> int:
        return (len(self._tokens) - 1 - self._length) // self._stride + 1

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        return window(self._tokens, index % len(self) * self._stride, self._length)


def _mapped(path: Path, dtype: str) -> NDArray[Any]:
    size = token_type(dtype).itemsize
    try:
        count = path.stat().st_size
        if not count or count % size:
            accepted = (
                f"its {count} bytes do not divide into values of {dtype}, which takes {size} each"
            )
            raise SpecError("tokens", str(path), accepted)
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        expect_random_reads(mapped)
        return np.frombuffer(mapped, dtype)
    except OSError as error:
        raise SpecError("tokens", str(path), f"cannot be read: {error.strerror}") from None


_SOME = "RandomCrop, RandomHorizontalFlip, RandomResizedCrop, ColorJitter and others of torchvision"
_DTYPES = {"float16": torch.float16, "float32": torch.float32, "uint8": torch.uint8}


def transforms(steps: Sequence[str]) -> Callable[[Any], Any]:
    """Return a function that applies transforms to an image [c, h, w], one after the other.

    >>> augment = transforms(["RandomCrop(32, padding=4)", "RandomHorizontalFlip()"])

    Types of tensors are given by their names: `"ToDtype('float32', scale=True)"`.

    A spec holds no code, so a transform is text, `"RandomCrop(32, padding=4)"`. We parse it as a
    name and literals and never evaluate it. The name is one of `torchvision.transforms.v2`. They
    draw from torch's global generator, which is seeded before each step of training, so
    augmentation follows from the position alone.

    Raises:
        SpecError: a step is not of this form, or torchvision does not know it, or refuses its
            options.
    """
    from torchvision.transforms import v2

    if isinstance(steps, str):
        raise SpecError("transforms", steps, "must be a list of texts")
    return v2.Compose([_made(step, v2) for step in steps])  # type: ignore[no-any-return]


def _made(step: str, v2: Any) -> Any:
    name, positional, named = _parsed(step)
    # Those of one image; `Lambda` takes any function.
    unfit = v2.Transform, v2.Lambda, v2.CutMix, v2.MixUp
    found = ((n, kind) for n, kind in vars(v2).items() if isinstance(kind, type))
    kinds = {n: kind for n, kind in found if issubclass(kind, v2.Transform) and kind not in unfit}
    if name not in kinds:
        near = get_close_matches(name, kinds, n=3)
        known = f"the nearest are {', '.join(near)}" if near else f"known are {_SOME}"
        raise SpecError("transforms", step, f"this transform is not allowed; {known}")
    try:
        return kinds[name](*positional, **named)
    except Exception as error:
        accepted = f"torchvision refuses it: {message_of(error)}"
        raise SpecError("transforms", step, accepted) from error


def _parsed(step: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Read "Name(1, option=2)" as a name, its values and its named values."""
    with suppress(SyntaxError, ValueError, TypeError):
        match ast.parse(step.strip(), mode="eval").body:
            case ast.Name(id=name):
                return name, [], {}
            case ast.Call(func=ast.Name(id=name), args=args, keywords=words):
                named = {word.arg: _value(word.value) for word in words}
                if None not in named:  # as from **options
                    return name, [_value(value) for value in args], named  # type: ignore[return-value]
            case _:
                pass
    accepted = "must be a name and plain values, such as RandomCrop(32, padding=4)"
    raise SpecError("transforms", step, accepted)


def _value(node: ast.expr) -> Any:
    value = ast.literal_eval(node)
    return _DTYPES.get(value, value) if isinstance(value, str) else value
