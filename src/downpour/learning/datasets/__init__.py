"""Datasets: decoded once into a shared folder, and mapped into memory by every worker.

`prepare` turns a spec's dataset into a folder of flat arrays and returns its name; `open_prepared`
maps that folder. `SOURCES` lists the datasets known by name; any other comes from a
`package.module:factory` on the allow-list. Importing these modules imports no torch;
only `images.py` uses it, to resize.

Decoding turns the arrays of any source into the arrays of a prepared dataset. It applies the
limits, resizes images and lays them out as [n, h, w, c] bytes. A batch of them, seen as
[b, c, h, w], has torch's channels_last layout without a copy. Numbers become float32 and labels
int64. Then it computes the statistics for normalization. It refuses a dataset that allows no
training, with the reason, and an ambiguous one: integers that may be amounts or names, amounts in
place of class numbers. A merely unusual property becomes a remark.

The folder is named by its content, see `array_folder.py`. So the same examples are the same folder,
wherever they came from, and an experiment finds its examples again without their source. Beside the
folders, `sources/` remembers the key of each source, so that a second preparation of unchanged
files returns at once.
"""

import json
import logging
import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from downpour.base.errors import SpecError, StoreError, did_you_mean
from downpour.core.spec import Spec
from downpour.files.store.directory import names_in, read_regular
from downpour.files.store.publish import writing
from downpour.host.paths import FolderLock, is_object_store
from downpour.learning.datasets.array_folder import damage, flush, read_facts, write_array_folder
from downpour.learning.datasets.arrays import Factory, Npz
from downpour.learning.datasets.built_in import Cifar10, Digits, IdxSource
from downpour.learning.datasets.images import Folder, resized
from downpour.learning.datasets.prepared import ARRAYS, Examples, PreparedDataset, open_prepared
from downpour.learning.datasets.source import (
    Arrays,
    DataSource,
    SourceFiles,
    fingerprint,
    found_at,
    row_blocks,
    stacked,
)

log = logging.getLogger(__name__)

CLASSES_MAX = 1_000_000

_CHANNELS = (1, 3, 4)
_EXACT_MAX = 2**24  # float32 holds every integer up to here
# Integers with gaps are taken for classes if each comes up this often on average, as amounts do
# not.
_EXAMPLES_OF_A_CLASS = 4


def decoded(arrays: Arrays, spec: Spec) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return what the `facts.json` of a source's arrays states (`prepared.Stated`), and its arrays.

    `x` is uint8 [n, h, w, c] or float32 [n, ...]. `y` is int64 [n] (class numbers below `classes`)
    or float32 [n, k] (zeros and ones; `classes` is 0). `mean` and `std` are in the units of `x`,
    one number a channel of images and one a feature of anything else.
    """
    train, test = slice(spec.train_limit), slice(spec.test_limit)
    train_x = _examples(arrays.train_x[train], arrays.normalize, spec)
    test_x = _examples(arrays.test_x[test], arrays.normalize, spec)
    if not len(train_x) or not len(test_x):
        accepted = f"has {len(train_x)} training and {len(test_x)} test examples, and needs both"
        raise SpecError("dataset", spec.dataset, "; ".join((accepted, *arrays.remarks)))
    if train_x.shape[1:] != test_x.shape[1:] or train_x.dtype != test_x.dtype:
        raise SpecError("dataset", spec.dataset, "training and test examples differ in shape")
    train_y, test_y = (_targets(y, spec) for y in (arrays.train_y[train], arrays.test_y[test]))
    if train_y.shape[1:] != test_y.shape[1:]:
        raise SpecError("dataset", spec.dataset, "training and test labels differ in shape")
    # From the labels before any limit: it must not change the number of classes.
    classes = 0 if train_y.ndim == 2 else _class_count(arrays, spec)
    if classes and train_y.min() == train_y.max():
        accepted = (
            f"all {len(train_y)} training examples have class "
            f"{_name(arrays, int(train_y[0]))}; training needs two classes"
        )
        field = "dataset" if spec.train_limit is None else "train_limit"
        raise SpecError(field, getattr(spec, field), accepted)
    mean, std = _statistics(train_x, arrays)
    shape, is_images = list(train_x.shape[1:]), train_x.dtype == np.uint8
    facts = {
        "train_samples": len(train_x),
        "test_samples": len(test_x),
        "sample_shape": [shape[2], *shape[:2]] if is_images else shape,
        "classes": classes,
        "targets_per_sample": 1 if classes else train_y.shape[1],
        "images": bool(is_images),
        "mean": mean,
        "std": std,
        "normalized": arrays.normalize is not False,
        "remarks": arrays.remarks + _remarks(train_y, classes, arrays),
    }
    return facts, {"train_x": train_x, "train_y": train_y, "test_x": test_x, "test_y": test_y}


def examples_like(x: NDArray[Any], dataset: PreparedDataset, spec: Spec) -> NDArray[Any]:
    """Bring other examples into the form of a prepared dataset's own."""
    known = dataset.train.x
    here = spec if _are_images(x) else spec.replace(image_size=None)
    found = _examples(x, dataset.normalized, here)
    if found.shape[1:] != known.shape[1:] or found.dtype != known.dtype:
        accepted = f"its examples are {_in_words(found)}; the network trained on"
        raise SpecError("dataset", spec.dataset, f"{accepted} {_in_words(known)}")
    return found


def targets_like(y: NDArray[Any], dataset: PreparedDataset, spec: Spec) -> NDArray[Any]:
    """Bring other labels into the form of a prepared dataset's own."""
    known, found, classes = dataset.train.y, _targets(y, spec), dataset.facts.classes
    if found.shape[1:] != known.shape[1:] or (classes and len(found) and found.max() >= classes):
        wanted = f"classes below {classes}" if classes else f"{known.shape[1]} zeros and ones each"
        raise SpecError("dataset", spec.dataset, f"its labels must be {wanted}, as in training")
    return found


def _in_words(x: NDArray[Any]) -> str:
    return f"{x.dtype} {' x '.join(map(str, x.shape[1:]))}"


def _are_images(x: NDArray[Any]) -> bool:
    return x.dtype == np.uint8 and x.ndim in (3, 4)


def _examples(x: NDArray[Any], normalize: bool | None, spec: Spec) -> NDArray[Any]:  # noqa: FBT001
    if _are_images(x):
        images = _channels_at_end(x, spec)
        size = spec.image_size
        if size is not None and images.shape[1:3] != (size, size):
            images = resized(images, size)
        return _contiguous(images, np.uint8)
    if spec.image_size is not None:
        raise SpecError("image_size", spec.image_size, f"dataset '{spec.dataset}' has no images")
    if x.dtype.kind in "iu":
        _check_integers(x, spec, normalize=normalize)
    with np.errstate(over="ignore"):  # an infinite number is refused below
        numbers = _contiguous(x, np.float32)
    if numbers.ndim < 2:
        numbers = numbers.reshape(-1, 1)
    if not all(np.isfinite(numbers[rows]).all() for rows in row_blocks(numbers)):
        raise SpecError("dataset", spec.dataset, "must hold finite numbers; some are not")
    return numbers


def _contiguous(x: NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
    if x.dtype == dtype and x.flags.c_contiguous:
        return x
    return stacked((x[rows] for rows in row_blocks(x)), x.shape, dtype)


def _check_integers(x: NDArray[Any], spec: Spec, *, normalize: bool | None) -> None:
    """Refuse integers that may be token ids, which normalization would garble, or too large."""
    if normalize is None:
        accepted = (
            f"its examples are {x.dtype} {list(x.shape)}, which may be amounts or names: "
            "add normalize = true to normalize each feature, or false to keep them "
            "unchanged"
        )
        raise SpecError("dataset", spec.dataset, accepted)
    if not normalize and len(x) and max(int(x.max()), -int(x.min())) > _EXACT_MAX:
        accepted = f"without normalization, integers up to {_EXACT_MAX} are exact in float32"
        raise SpecError("dataset", spec.dataset, accepted)


def _channels_at_end(x: NDArray[np.uint8], spec: Spec) -> NDArray[np.uint8]:
    if x.ndim == 3:
        return x[..., None]
    if x.shape[3] in _CHANNELS:
        return x
    if x.shape[1] in _CHANNELS:
        return x.transpose(0, 2, 3, 1)
    raise SpecError("dataset", spec.dataset, f"images {x.shape[1:]} need 1, 3 or 4 channels")


def _targets(y: NDArray[Any], spec: Spec) -> NDArray[Any]:
    flat = y.reshape(len(y), -1)
    if flat.shape[1] == 1:
        return _class_numbers(flat[:, 0], spec)
    if not np.isin(flat, (0, 1)).all():
        raise SpecError("dataset", spec.dataset, "labels [n, k] must be zeros and ones")
    return np.ascontiguousarray(flat, dtype=np.float32)


def _class_numbers(y: NDArray[Any], spec: Spec) -> NDArray[np.int64]:
    whole = y.dtype.kind in "biu" or (np.isfinite(y).all() and (y == np.floor(y)).all())
    if not whole or (len(y) and (y.min() < 0 or int(y.max()) >= CLASSES_MAX)):
        raise SpecError("dataset", spec.dataset, "labels must be class numbers, 0 or above")
    return np.ascontiguousarray(y, dtype=np.int64)


def _class_count(arrays: Arrays, spec: Spec) -> int:
    """Return the highest class number plus one; refuses amounts that happen to be whole numbers.

    A source that knows its classes is right. Numbers up to which all are there are classes. Others
    are taken for classes where they are of an integer type and most come up several times.
    """
    if arrays.classes:
        return len(arrays.classes)
    both = arrays.train_y, arrays.test_y
    labels = np.concatenate([_class_numbers(y.reshape(-1), spec) for y in both])
    values = np.unique(labels)
    classes = int(values[-1]) + 1
    is_float = any(y.dtype.kind == "f" for y in both)
    are_few = len(labels) < _EXAMPLES_OF_A_CLASS * len(values)
    if len(values) < classes and (is_float or are_few):
        accepted = (
            f"its labels are {len(values)} different numbers up to {values[-1]} in {len(labels)} "
            f"examples, which would make {classes} classes: give integers from 0 without "
            "gaps (Downpour does not learn amounts)"
        )
        raise SpecError("dataset", spec.dataset, accepted)
    return classes


def _name(arrays: Arrays, label: int) -> str:
    return arrays.classes[label] if arrays.classes else str(label)


def _remarks(train_y: NDArray[Any], classes: int, arrays: Arrays) -> tuple[str, ...]:
    if not classes:
        return ()
    counts = np.bincount(train_y, minlength=classes)
    missing = np.flatnonzero(counts == 0)
    if not len(missing):
        return ()
    named = [_name(arrays, label) for label in missing[:5].tolist()]
    shown = ", ".join(named) + (", …" if len(missing) > 5 else "")
    return (f"{len(missing)} of {classes} classes have no training examples: {shown}",)


def _statistics(x: NDArray[Any], arrays: Arrays) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if arrays.normalize is False:
        width = x.shape[-1] if x.dtype == np.uint8 else int(np.prod(x.shape[1:]))
        return (0.0,) * width, (1.0,) * width
    if x.dtype != np.uint8:
        mean, std = _of_features(x)
    elif arrays.mean is not None and arrays.std is not None:
        mean, std = np.asarray(arrays.mean) * 255, np.asarray(arrays.std) * 255
    else:
        mean, std = np.array([_moments(x[..., channel]) for channel in range(x.shape[3])]).T
    # A feature that never changes has no information: it becomes zero, not infinite.
    std = np.where(std > 0, std, 1.0)
    return tuple(mean.ravel().tolist()), tuple(std.ravel().tolist())


def _of_features(x: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return numpy's mean and standard deviation of rows, to the last digit, block by block."""
    if x[0].size == 1:  # of a single column, numpy adds halves of halves
        return x.mean(axis=0, dtype=np.float64), x.std(axis=0, dtype=np.float64)
    total = squares = np.zeros((1, *x.shape[1:]))
    for rows in row_blocks(x):
        total = np.add.reduce(np.concatenate([total, x[rows]]), axis=0, keepdims=True)
    mean = total / len(x)
    for rows in row_blocks(x):
        apart = np.square(x[rows] - mean)
        squares = np.add.reduce(np.concatenate([squares, apart]), axis=0, keepdims=True)
    return mean, np.sqrt(squares / len(x))


def _moments(values: NDArray[np.uint8]) -> tuple[float, float]:
    """Return mean and standard deviation, from exact counts of the 256 values.

    In whole numbers, each rounded once: they are part of the key of the data, and a product of
    floats has other last digits on another make of processor.
    """
    found = np.zeros(256, np.int64)
    for rows in row_blocks(values):  # because `bincount` makes eight bytes of each value
        found += np.bincount(values[rows].ravel(), minlength=256)
    counts = found.tolist()
    count = sum(counts)
    total = sum(value * times for value, times in enumerate(counts))
    squares = sum(value * value * times for value, times in enumerate(counts))
    return total / count, math.sqrt((count * squares - total * total) / count**2)


# Part of every name. Raise it with any change of the bytes written for the same source.
FORMAT = 3
DOWNLOADS = "downloads"
_SOURCES_FOLDER = "sources"


SOURCES: dict[str, DataSource] = {
    "digits": Digits(),
    "mnist": IdxSource("MNIST", mean=(0.1307,), std=(0.3081,)),
    "fashion-mnist": IdxSource("FashionMNIST", mean=(0.2860,), std=(0.3530,)),
    "kmnist": IdxSource("KMNIST"),
    "cifar10": Cifar10(),
    "npz": Npz(),
    "folder": Folder(),
}


def check_source(spec: Spec, data_dir: Path | None = None) -> None:
    """Check names, paths and the allow-list before anything starts."""
    if data_dir is not None and not os.path.isdir(data_dir):  # noqa: PTH112 - takes any name
        raise SpecError("data_dir", str(data_dir), "no such folder")
    source = _source(spec)
    if is_object_store(spec.data_path):
        found_at("data_path", spec.data_path or "")
    else:
        source.check(spec, data_dir)
    if spec.dataset_options and spec.dataset in SOURCES:
        raise SpecError("dataset_options", spec.dataset_options, "only a factory has options")


def _source(spec: Spec) -> DataSource:
    source = Factory() if ":" in spec.dataset else SOURCES.get(spec.dataset)
    if source is None:
        known = f"known are {', '.join(SOURCES)} and package.module:factory"
        raise SpecError("dataset", spec.dataset, known + did_you_mean(spec.dataset, SOURCES))
    return source


def prepare(
    spec: Spec,
    datasets_root: Path,
    data_dir: Path | None = None,
    begun_with: str | None = None,
    source: DataSource | None = None,
) -> str:
    """Decode the spec's dataset once; return the bare name of its folder under `datasets_root`.

    The name is the dataset's key: it follows from the content, so that equal keys are equal
    examples. Safe to call from many processes together: one decodes, the others wait; a second
    call returns at once. The examples come from `source`, by default what the spec names.

    We search `data_dir` for the files of well-known datasets before the cache
    `datasets_root/downloads`, and for a relative `data_path` before the working directory. An
    experiment goes on with the key `begun_with`. It needs no source while the folder is whole, and
    the source must come to the same key where it is not.
    """
    source = source or _source(spec)
    if begun_with is None:
        key = _decoded_key(source, spec, datasets_root, data_dir)
    elif (reason := damage(datasets_root, begun_with, ARRAYS)) is None:
        key = begun_with
    else:
        log.warning("decoding a dataset again: %s", reason)
        key = _same_key_again(source, spec, datasets_root, data_dir, begun_with, reason)
    if spec.flip and not read_facts(datasets_root / key).get("images"):
        raise SpecError("flip", value=True, accepted=f"dataset '{spec.dataset}' has no images")
    return key


def _decoded_key(source: DataSource, spec: Spec, root: Path, data_dir: Path | None) -> str:
    """Decode the source's current files, unless that was done before."""
    with _reading(spec):
        files = source.find(spec, data_dir, root / DOWNLOADS)
    name = _source_name(spec, files)
    key = _remembered(root, name)
    if key is not None:
        return key
    with writing(root, f"dataset {spec.dataset}"):
        with suppress(FileExistsError):
            (root / _SOURCES_FOLDER).mkdir()
        with FolderLock(root / _SOURCES_FOLDER / f".{name}.lock"):
            # An NFS client caches that a file was missing until it lists the folder.
            names_in(root / _SOURCES_FOLDER)
            return _remembered(root, name) or _decode(files, spec, root, name)


def _same_key_again(
    source: DataSource, spec: Spec, root: Path, data_dir: Path | None, begun_with: str, reason: str
) -> str:
    """Decode the examples of an experiment again, whose folder is gone or damaged."""
    try:
        key = _decoded_key(source, spec, root, data_dir)
    except SpecError as error:
        accepted = f"{error.accepted}; the manager needs it again because {reason}"
        raise SpecError(error.field, error.value, accepted) from None
    if key != begun_with:
        accepted = f"has changed since the experiment began with {begun_with}, and {reason}"
        raise SpecError("dataset", spec.dataset, accepted)
    return key


def _decode(files: SourceFiles, spec: Spec, root: Path, name: str) -> str:
    with _reading(spec):
        arrays = files.read()
    key = write_array_folder(root, _readable(spec), *decoded(arrays, spec))
    if arrays.files is not None:
        _remember(root, name, key, fingerprint(arrays.files))
    return key


def _remembered(root: Path, name: str) -> str | None:
    """Return the key of a source that was decoded before, if folder and files are unchanged."""
    try:
        known = json.loads(read_regular(root / _SOURCES_FOLDER / f"{name}.json"))
        key, files = str(known["key"]), [str(line) for line in known["files"]]
        # From the right, because a path may hold spaces; size and time of change follow it.
        if list(fingerprint(Path(line.rsplit(" ", 2)[0]) for line in files)) != files:
            return None
    except (OSError, SpecError, StoreError, ValueError, KeyError, TypeError):
        return None
    reason = damage(root, key, ARRAYS)
    if reason is not None:
        log.warning("decoding a dataset again: %s", reason)
    return key if reason is None else None


def _remember(root: Path, name: str, key: str, files: tuple[str, ...]) -> None:
    partial_file = root / _SOURCES_FOLDER / f".{name}.partial"
    # Flushed before it is renamed: after a power cut an empty file would stand under the name.
    partial_file.write_text(json.dumps({"key": key, "files": files}), encoding="utf-8")
    flush(partial_file)
    partial_file.replace(root / _SOURCES_FOLDER / f"{name}.json")


def _source_name(spec: Spec, files: SourceFiles) -> str:
    determines = {
        "format": FORMAT,
        "dataset": spec.dataset,
        "options": spec.dataset_options,
        "image_size": spec.image_size,
        "limits": [spec.train_limit, spec.test_limit],
        "source": files.fingerprint,
    }
    digest = sha256(json.dumps(determines, sort_keys=True).encode()).hexdigest()[:16]
    return f"{_readable(spec)}-{digest}"


def _readable(spec: Spec) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", spec.dataset).strip("-")[:64] or "dataset"


@contextmanager
def _reading(spec: Spec) -> Iterator[None]:
    """Turn errors of reading a source into SpecErrors that name the dataset."""
    try:
        yield
    except MemoryError:
        accepted = "does not fit into the memory of the machine that prepares it"
        raise SpecError("dataset", spec.dataset, accepted) from None
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        raise SpecError("dataset", spec.dataset, f"cannot be read: {what}") from None
