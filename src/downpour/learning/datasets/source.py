"""A source of examples: the one that a spec names, and the files it needs.

A source knows one kind of files (or one package) and nothing of limits, resizing, normalization or
the prepared folder. Those are the same for all and are in `__init__.py`.
Sources import what they need (Pillow, scikit-learn, torchvision) inside their functions, so that a
machine without them can use the others.
"""

import errno
import json
import math
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryFile
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from downpour.base.errors import SharedDirectoryError, SpecError, StoreError, require, size_in_words
from downpour.core.spec import Spec
from downpour.files.store.bucket import Bucket, Found
from downpour.files.store.layout import Buffer
from downpour.files.store.publish import FULL, explain, replacing
from downpour.files.store.shared_directory import folder_of, keeping_here, not_kept, own_folder
from downpour.host.paths import FolderLock, checked_url, is_object_store, path_of

_FETCHES = 16
_TAGS = ".tags.json"


def local_path(field: str, given: str | os.PathLike[str]) -> Path:
    """Return a path as it is, or the file or folder that was fetched from an object store's URL.

    A URL names one object, or a folder of them. We keep the copies below `DOWNPOUR_LOCAL`, and
    replace one only when the store's entity tag or size has changed. So Downpour notices a changed
    object, and workers of one machine fetch together. A file's time of change is that of its
    object.

    Raises:
        SpecError: nothing is there, or it cannot be fetched; names `field`.
        MissingPackage: the URL needs a library that is not installed.
    """
    if not is_object_store(given):
        return path_of(field, given) if str(given).startswith("file://") else Path(given)
    bucket, name, found = found_at(field, str(given))
    folder = folder_of(bucket.url) / "data"
    with naming(field, str(given)):
        _fetch(bucket, found, folder)
    return folder / name


def found_at(field: str, url: str) -> tuple[Bucket, str, list[Found]]:
    """Return the bucket of a URL, the name there, and the object of that name or all below it.

    Raises SpecError if there is none; nothing is fetched.
    """
    require(f"{field} = '{url}'", "objects")
    parent, _, name = checked_url(field, url).rpartition("/")
    if parent.endswith("/"):  # of the two behind the scheme
        raise SpecError(field, url, "must name an object or a folder in the bucket")
    with naming(field, url):
        bucket = Bucket.at(parent)
        # Some programs make empty objects that end in a slash, for folders.
        found = [
            one for one in bucket.found(name) if {"", ".", ".."}.isdisjoint(one.key.split("/"))
        ]
    folders = {str(parent) for one in found for parent in PurePosixPath(one.key).parents}
    # A store's console marks a folder by an empty object of its name.
    found = [one for one in found if one.size_bytes or one.key not in folders]
    # A folder may have an object of its name beside it in a store, and cannot on a disk.
    single = [one for one in found if one.key == name]
    if not found:
        raise SpecError(field, url, "no such object or folder")
    return bucket, name, single or found


@contextmanager
def naming(field: str, url: str) -> Iterator[None]:
    """Translate the errors of a block that fetches a URL."""
    try:
        yield
    except StoreError as error:
        reason = error.reason if isinstance(error, SharedDirectoryError) else error
        raise SpecError(field, url, f"cannot be fetched: {reason}") from error
    except OSError as error:
        raise SpecError(field, url, str(not_kept(explain(error)))) from None


def _fetch(bucket: Bucket, found: list[Found], folder: Path) -> None:
    """Have these objects as files, and of their folder nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    top = found[0].key.partition("/")[0]
    with FolderLock(folder / f".{top}.lock"):
        tags_file = folder / f".{top}{_TAGS}"
        known = _read_tags(tags_file)
        missing = [one for one in found if known.get(one.key) != one.tag]
        missing += [one for one in found if one not in missing and not (folder / one.key).is_file()]
        with ThreadPoolExecutor(_FETCHES) as fetching:
            for _ in fetching.map(lambda one: _fetch_one(bucket, one, folder), missing):
                pass
        for key in known.keys() - {one.key for one in found}:
            with suppress(OSError):
                (folder / key).unlink()
                # An object store has no empty folders, which would count as classes here.
                for parent in (folder / key).relative_to(folder).parents[:-1]:
                    (folder / parent).rmdir()
        tags_file.write_text(json.dumps({one.key: one.tag for one in found}), encoding="utf-8")


def _fetch_one(bucket: Bucket, one: Found, folder: Path) -> None:
    path = folder / one.key
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part:
        bucket.fetch(one.key, part)
        os.utime(part, (one.changed_seconds, one.changed_seconds))


def _read_tags(file: Path) -> dict[str, str]:
    try:
        return {str(key): str(tag) for key, tag in json.loads(file.read_text("utf-8")).items()}
    except (OSError, ValueError, AttributeError):
        return {}


HELD_OUT_EVERY = 5
_BLOCK = 1 << 20


def random_order(count: int, *words: int, first: int | None = None) -> NDArray[np.int64]:
    """Return the permutation of 0..count-1 that follows from non-negative integers.

    With `first`, return only its first numbers; this takes memory for a few times as many.

    It follows from the raw words of PCG64 alone, which numpy promises never to change. The draws of
    numpy's `Generator` may change with its version, so we use none.
    """
    generator = np.random.PCG64(np.random.SeedSequence(words))
    if first is None or first >= count:
        return np.argsort(generator.random_raw(count), kind="stable").astype(np.int64, copy=False)
    block = max(first, _BLOCK)
    lowest, places = np.empty(0, np.uint64), np.empty(0, np.int64)
    for start in range(0, count, block):
        stop = min(start + block, count)
        drawn = np.concatenate([lowest, generator.random_raw(stop - start)])
        order = np.argsort(drawn, kind="stable")[:first]
        lowest, places = drawn[order], np.concatenate([places, np.arange(start, stop)])[order]
    return places


def held_out(labels: NDArray[np.int64] | None, count: int) -> tuple[NDArray[np.int64], ...]:
    """Cut a set without a test part into training and test indices, four to one, by class.

    The cut does not depend on the experiment's seed, so that runs can be compared.
    Both parts come in random order, so that the first few of them are a fair sample.
    """
    order = random_order(count, HELD_OUT_EVERY, count)
    by_class = order if labels is None else order[np.argsort(labels[order], kind="stable")]
    chosen = np.zeros(count, dtype=bool)
    chosen[by_class[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]] = True
    return order[~chosen[order]], order[chosen[order]]


IN_MEMORY_BYTES = 2**26
"""Larger arrays of a preparation are mapped from files without names."""

_ROWS_BYTES = 2**20


def row_blocks(x: NDArray[Any], count: int | None = None) -> Iterator[slice]:
    """Yield ranges of `count` rows, in order; of those in [n, ...] each takes a megabyte."""
    rows = max(1, _ROWS_BYTES // max(1, x[:1].nbytes))
    count = len(x) if count is None else count
    return (slice(begin, begin + rows) for begin in range(0, count, rows))


def stacked(blocks: Iterable[NDArray[Any]], shape: Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
    """Return an array of this shape, whose rows come in blocks [b, ...]."""
    chunks = (np.ascontiguousarray(block, dtype).tobytes() for block in blocks)
    return stored(chunks, math.prod(shape) * np.dtype(dtype).itemsize).view(dtype).reshape(shape)


def stored(chunks: Iterable[Buffer], size_bytes: int) -> NDArray[np.uint8]:
    """Return bytes [n] that come in chunks: in memory, or mapped from a file without a name."""
    if size_bytes <= IN_MEMORY_BYTES:
        return np.frombuffer(bytearray(b"".join(chunks)), np.uint8)
    folder = own_folder()  # as a folder for temporary files may be in memory
    with keeping_here():
        folder.mkdir(parents=True, exist_ok=True)
        free_bytes = shutil.disk_usage(folder).free
        if size_bytes > free_bytes:
            free = f"only {size_in_words(free_bytes)} are free"
            raise OSError(errno.ENOSPC, f"needs {size_in_words(size_bytes)}, but {free}")
        file = TemporaryFile(dir=folder)  # noqa: SIM115 - below, errors may be the source's
    try:
        with file:
            file.writelines(chunks)
            file.flush()
            return np.memmap(file, np.uint8, "r")
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise not_kept(explain(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrays:
    """Examples as a source decodes them.

    `x` is images where it is uint8 with 3 or 4 dimensions ([n, h, w], [n, h, w, c] or
    [n, c, h, w]), and numbers otherwise ([n, ...]). `y` is class numbers [n] or [n, 1], or zeros
    and ones [n, k]. `mean` and `std` are a well-known set's usual ones, per channel of values
    scaled to 0..1; absent, they are computed from the training set. `normalize` says whether the
    values are scaled by them: amounts are, names such as token ids must not be. None leaves that to
    the dtype, which is enough for images and for numbers that are no integers. `files` were read
    besides those in `SourceFiles`; None where they cannot be known, and then a decoded copy must
    not be reused. `classes` are names, if the source knows all; otherwise labels tell their number.
    `remarks` are for people, one line each: above all, about left-out files.
    """

    train_x: NDArray[Any]
    train_y: NDArray[Any]
    test_x: NDArray[Any]
    test_y: NDArray[Any]
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    normalize: bool | None = None
    files: tuple[Path, ...] | None = ()
    classes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFiles:
    """A source's files: a fingerprint of their content, and a function that decodes them."""

    fingerprint: tuple[str, ...]
    read: Callable[[], Arrays]


class DataSource(Protocol):
    """One kind of dataset."""

    def check(self, spec: Spec, data_dir: Path | None) -> None:
        """Raise SpecError for mistakes that are cheap to see, if any; `find` may still fail."""
        del spec, data_dir

    def find(self, spec: Spec, data_dir: Path | None, downloads: Path) -> SourceFiles:
        """Find the source's files, or refuse them; some sources download into `downloads`."""


def fingerprint(paths: Iterable[Path], *, field: str = "dataset") -> tuple[str, ...]:
    """Return path, size and time of change of files: they change with the content."""
    lines = []
    for path in paths:
        try:
            status = path.stat()
        except (OSError, ValueError) as error:
            reason = "is a link to nothing" if path.is_symlink() else _why(error)
            raise SpecError(field, _in_words(path), reason) from None
        if not stat.S_ISREG(status.st_mode):
            raise SpecError(field, _in_words(path), "is not a file")
        lines.append(f"{path.resolve()} {status.st_size} {status.st_mtime_ns}")
    return tuple(lines)


def named_path(spec: Spec, data_dir: Path | None) -> Path:
    """Return `data_path`, looked up in `data_dir` first where it is relative.

    For an object store's URL, it is the path of the file or folder that was fetched.
    """
    given = local_path("data_path", spec.data_path or "")
    places = [data_dir / given, given] if data_dir and not given.is_absolute() else [given]
    accepted = "no such file or folder"
    for place in places:
        try:
            place.stat()
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:  # too long, a null byte, no permission
            accepted = _why(error)
            continue
        return place
    raise SpecError("data_path", spec.data_path, accepted)


def _in_words(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def _why(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
