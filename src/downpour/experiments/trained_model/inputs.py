"""Examples that a user gives to a trained built-in model: arrays, images, folders of images.

We bring them into the form of the training examples, and normalize them in the same way.
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
from downpour.core.spec import Spec
from downpour.host.user_file import check_user_file
from downpour.learning.datasets import SOURCES, Examples, PreparedDataset
from downpour.learning.datasets.decoding import examples_like, targets_like
from downpour.learning.datasets.folder import decoded_images, has_test_part
from downpour.learning.datasets.image_files import IMAGE_SUFFIXES, is_image
from downpour.learning.datasets.npz import Npz

_X = ("x", "x_test", "test_images")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Examples without labels, and the name of each: a file, or the number of a row from 0."""

    names: tuple[str, ...]
    x: NDArray[Any]


def read_labelled(path: Path, dataset: PreparedDataset, spec: Spec, *, field: str) -> Examples:
    """Read examples to measure a model on: the test part if there is one, else all.

    Args:
        path: a .npz file, or a folder of images by class.
        dataset: the dataset that the model was trained on.
        spec: the spec that it was trained with.
        field: the user's name for the path.

    Raises:
        SpecError: the path cannot be read, or its examples or labels are of another kind.
    """
    kind = "folder" if path.is_dir() else "npz"
    given = Spec(dataset=kind, data_path=str(path), image_size=spec.image_size)
    with _named(field, path):
        x, y = _of_folder(given, path) if path.is_dir() else Npz().read_labelled(given)
        return Examples(x=examples_like(x, dataset, given), y=targets_like(y, dataset, given))


def read_inputs(path: Path, dataset: PreparedDataset, spec: Spec, *, field: str) -> Inputs:
    """Read examples to predict: an .npz or .npy file, an image, or a folder of images.

    Raises:
        SpecError: the path cannot be read, or its examples are of another kind.
    """
    given = Spec(image_size=spec.image_size)
    with _named(field, path):
        if path.suffix in {".npz", ".npy"}:
            check_user_file(path)
            x = _array(path)
            names = tuple(map(str, range(len(x))))
        else:
            files = _images(path)
            x = decoded_images(files, dataset.train.x.shape[-1], spec.image_size)
            names = tuple(file.name for file in files)
        return Inputs(names=names, x=examples_like(x, dataset, given))


def _of_folder(given: Spec, path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    arrays = SOURCES["folder"].find(given, None, Path()).read()
    if has_test_part(path):
        return arrays.test_x, arrays.test_y
    both = (arrays.train_x, arrays.test_x), (arrays.train_y, arrays.test_y)
    return np.concatenate(both[0]), np.concatenate(both[1])


def _array(path: Path) -> NDArray[Any]:
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            found = loaded
        else:
            with loaded as archive:
                found = archive[_name_in(archive.files)]
    except SpecError:
        raise
    except Exception as error:  # noqa: BLE001 - zipfile and numpy raise anything about damage
        reason = " ".join(str(error).split()) or type(error).__name__
        raise SpecError("dataset", path.name, f"cannot be read: {reason}") from None
    if found.dtype.kind not in "biuf" or not found.ndim or not len(found):
        raise SpecError("dataset", path.name, "must hold numbers, one example per row")
    return found


def _name_in(names: list[str]) -> str:
    if len(names) == 1:
        return names[0]
    known = [name for name in _X if name in names]
    if len(known) != 1:
        there = ", ".join(names) or "none"
        raise SpecError("dataset", "", f"must hold one array, or one called x; it holds {there}")
    return known[0]


def _images(path: Path) -> list[Path]:
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    images = [file for file in files if is_image(file) and file.is_file()]
    if not images:
        kinds = ", ".join(sorted(IMAGE_SUFFIXES))
        accepted = f"must be a .npz or .npy file, an image ({kinds}), or a folder of images"
        raise SpecError("dataset", path.name, accepted)
    return images


@contextmanager
def _named(field: str, path: Path) -> Iterator[None]:
    """Let errors about examples use the user's name for them."""
    try:
        path.stat()
        yield
    except SpecError as error:
        raise SpecError(field, str(path), error.accepted) from None
    except FileNotFoundError:
        raise SpecError(field, str(path), "no such file or folder") from None
    except OSError as error:
        raise SpecError(field, str(path), f"cannot be read: {error.strerror}") from None
