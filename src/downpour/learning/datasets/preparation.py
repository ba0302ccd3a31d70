"""Decodes a dataset once, into a folder that all workers map into memory.

The folder is named by its content, see `array_folder.py`. So the same examples are the same folder,
wherever they came from, and an experiment finds its examples again without their source. Beside the
folders, `sources/` remembers the key of each source, so that a second preparation of unchanged
files returns at once. A process holds a lock, writes the folder under a temporary name, flushes it
to the disk, and renames it. So the folder appears whole or not at all, however many processes start
together or die in between.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from downpour.base.errors import SpecError, StoreError, did_you_mean
from downpour.core.spec import Spec
from downpour.files.store.directory import names_in, read_regular
from downpour.files.store.publish import writing
from downpour.host.paths import FolderLock, is_object_store
from downpour.learning.datasets.array_folder import damage, flush, read_facts, write_array_folder
from downpour.learning.datasets.arrays import Factory, Npz
from downpour.learning.datasets.built_in import Cifar10, Digits, IdxSource
from downpour.learning.datasets.decoding import decoded
from downpour.learning.datasets.images import Folder
from downpour.learning.datasets.prepared import ARRAYS
from downpour.learning.datasets.source import DataSource, SourceFiles, check_there, fingerprint

log = logging.getLogger(__name__)

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
        check_there("data_path", spec.data_path or "")
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
    call returns at once.

    Args:
        spec: names the dataset.
        datasets_root: where prepared datasets are.
        data_dir: is searched for the files of well-known datasets before the cache
            `datasets_root/downloads`, and for a relative `data_path` before the working directory.
        begun_with: the key that an experiment goes on with. Its source is not needed while the
            folder is whole, and must come to the same key where it is not.
        source: where the examples come from; by default what the spec names.
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
