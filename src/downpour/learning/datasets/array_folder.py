"""A folder of flat arrays that never changes; its content gives its name.

Its name, the *key*, ends in a checksum of its `facts.json`, which holds the checksum of each array.
So the key determines every byte. A writer holds a lock, writes the folder under a temporary name,
flushes it to the disk, and renames it: it appears whole or not at all.

If compression pays, an array is in `train_x.npy.gz`, and each machine unpacks it once into its own
folder, which all its processes map into memory. MNIST's images shrink 4.3 times. Packing them takes
0.36 s and unpacking 0.16 s (47 MB, one core).
"""

from __future__ import annotations

import gzip
import io
import json
import logging
import math
import mmap
import os
import re
import shutil
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from downpour.base.errors import FileCorrupt, FileMissing
from downpour.base.values import is_bare_name
from downpour.files.store.directory import names_in, open_regular
from downpour.files.store.publish import RetryPolicy, reading, sync_directory
from downpour.files.store.shared_directory import own_folder
from downpour.host.machine import expect_random_reads, note_use, raise_limit, remove_unused
from downpour.host.paths import FolderLock
from downpour.learning.datasets.digests import (
    CHANGED,
    WHOLE_BYTES,
    VerifiedBlocks,
    block_digests,
    blocks_of,
    checksum_of,
    identity,
)

log = logging.getLogger(__name__)

ENDING = ".gz"

_LEVEL = 1
_BYTES_MIN = 2**20  # below, a copy costs more than it saves
_SAMPLES, _SAMPLE_BYTES = 16, 2**14
_TIMES_MIN = 2
_HEADER_BYTES_MAX = 2**14
_WINDOW_BYTES = 2**20


class NoCopy(Exception):
    """This machine has no room for its own copy; says why."""


def pays(content: NDArray[np.uint8]) -> bool:
    """Say whether bytes [n] should be packed: they are many, and samples shrink to less than half.

    Photographs do not, and then only the samples have been compressed.
    """
    if len(content) < _BYTES_MIN:
        return False
    begins = np.linspace(0, len(content) - _SAMPLE_BYTES, _SAMPLES, dtype=np.int64)
    sample = b"".join(content[begin : begin + _SAMPLE_BYTES].tobytes() for begin in begins)
    return len(zlib.compress(sample, _LEVEL)) * _TIMES_MIN < len(sample)


def own_copy(packed: Path, checksum: str, content_bytes: int) -> Path:
    """Return this machine's unpacked copy of a packed file, made if it is missing.

    The caller verifies it. `checksum` names it, and is 32 hexadecimal digits.
    """
    with _own_disk():
        folder = own_folder() / "arrays"
        folder.mkdir(parents=True, exist_ok=True)
        alone = FolderLock(folder / f".{checksum}.lock").acquire()
    copy = folder / f"{checksum}.npy"
    with alone:
        if copy.is_file():
            note_use(copy)
        else:
            remove_unused(folder.glob("*.npy"))
            _unpack(packed, copy, content_bytes)
    return copy


def in_memory(packed: Path, content_bytes: int) -> NDArray[Any]:
    """Return the array in a packed file, in the memory of this process alone.

    Raises: as `own_copy`, without NoCopy.
    """
    content = io.BytesIO(b"".join(_unpacked(packed, content_bytes)))
    array: NDArray[Any] = np.lib.format.read_array(content, allow_pickle=False)
    return array


def _unpack(packed: Path, copy: Path, content_bytes: int) -> None:
    part = copy.with_suffix(".partial")
    try:
        with _own_disk():
            target = part.open("wb", buffering=0)
        with target:
            for block in _unpacked(packed, content_bytes):
                with _own_disk():
                    target.write(block)
        with _own_disk():
            part.replace(copy)
    finally:
        part.unlink(missing_ok=True)


def _unpacked(packed: Path, content_bytes: int) -> Iterator[bytes]:
    """Yield a packed file's content; never more bytes than expected, even if it has more."""
    left = content_bytes + _HEADER_BYTES_MAX
    with open(open_regular(packed), "rb") as file, gzip.GzipFile(fileobj=file) as content:
        try:
            while block := content.read(min(_WINDOW_BYTES, left + 1)):
                left -= len(block)
                if left < 0:
                    raise ValueError("unpacks to more bytes than were packed")
                yield block
        except (gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(str(error)) from None


@contextmanager
def _own_disk() -> Iterator[None]:
    """Tell a failure of this machine's folder from one of the shared folder."""
    try:
        yield
    except OSError as error:
        raise NoCopy(error.strerror or str(error)) from error


FACTS_FILE = "facts.json"

_DIGESTS = ".digests"
_CHECKSUM = re.compile("[0-9a-f]{32}")

_PARSING = Lock()
"""Held while NumPy parses a header: until CPython 3.11.8, two threads that parse Python literals at
once may end in a SystemError (python/cpython#106905)."""

_LOOKS = RetryPolicy(seconds=0.2)
"""A folder that another machine has just made may be seen only at the second look."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArrayFolder:
    """The contents of a folder: the facts in its `facts.json`, and its arrays by name, mapped.

    An array's user verifies the `blocks` that it reads, if the array has any.
    """

    facts: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]
    blocks: Mapping[str, VerifiedBlocks]


def write_array_folder(
    root: Path, prefix: str, facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
) -> str:
    """Write a folder under `root`, unless an intact one is there; returns its key."""
    digests = {name: block_digests(_content(array)) for name, array in arrays.items()}
    described = {name: _described(array, digests[name]) for name, array in arrays.items()}
    text = json.dumps({**facts, "arrays": described}, indent=1).encode()
    key = f"{prefix}-{xxhash.xxh3_64_hexdigest(text)}"
    with FolderLock(root / f".{key}.lock"):
        # Looked at under the lock, because another process may have made it while this one waited.
        if key not in names_in(root) or damage(root, key, arrays) is not None:
            _make(root / key, arrays, digests, text)
    return key


def open_array_folder(
    root: Path, key: str, names: Iterable[str], by_block: Collection[str] = ()
) -> ArrayFolder:
    """Map the named arrays of a folder, and verify them if this process has not done so.

    Those `by_block` that have digests beside them are left to their user.
    """
    if not is_bare_name(key):
        raise FileCorrupt(key, "must be a bare folder name")
    folder = root / key
    facts = read_facts(folder)
    there = names_in(folder)
    try:
        opened = {name: _opened(folder, there, name, facts["arrays"][name]) for name in names}
    except (KeyError, TypeError) as error:
        raise FileCorrupt(f"{key}/{FACTS_FILE}", f"misses or garbles {error}") from None
    blocks = {name: one.blocks for name, one in opened.items() if one.blocks is not None}
    for name in blocks.keys() - set(by_block):
        blocks.pop(name).verify_all()
    return ArrayFolder(
        facts=facts, arrays={name: one.array for name, one in opened.items()}, blocks=blocks
    )


def damage(root: Path, key: str, names: Iterable[str]) -> str | None:
    """Return why a folder cannot be opened, or None if it can."""
    try:
        look = partial(open_array_folder, root, key, tuple(names))
        _LOOKS.call(look, errors=(FileMissing, FileCorrupt))
    except (FileMissing, FileCorrupt) as error:
        return str(error)
    return None


def _make(
    folder: Path,
    arrays: Mapping[str, NDArray[Any]],
    digests: Mapping[str, bytes],
    facts_text: bytes,
) -> None:
    partial_folder = folder.with_name(f".{folder.name}.partial")
    # This process holds the lock, so a partial folder was left by a process that died.
    shutil.rmtree(partial_folder, ignore_errors=True)
    partial_folder.mkdir()
    try:
        for name, array in arrays.items():
            _write(partial_folder, name, array, digests[name])
        (partial_folder / FACTS_FILE).write_bytes(facts_text)
        for path in partial_folder.iterdir():
            flush(path)
        sync_directory(partial_folder)
        # A damaged one is not removed, because workers may have mapped its files.
        if folder.name in names_in(folder.parent):
            aside = folder.with_name(f".{folder.name}.damaged")
            shutil.rmtree(aside, ignore_errors=True)
            folder.rename(aside)
        partial_folder.rename(folder)
        sync_directory(folder.parent)
    finally:
        shutil.rmtree(partial_folder, ignore_errors=True)


def _write(folder: Path, name: str, array: NDArray[Any], digests: bytes) -> None:
    """Write an array as `np.save` does, but with the error of the system if it fails."""
    array = np.ascontiguousarray(array)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
    content = array.reshape(-1).view(np.uint8)
    is_packed = pays(content)
    with ExitStack() as files:
        file: Any = files.enter_context((folder / f"{name}.npy{ENDING * is_packed}").open("wb"))
        if is_packed:  # without a name and a time, so that the same bytes give the same file
            file = files.enter_context(gzip.GzipFile("", "wb", _LEVEL, file, mtime=0))
        file.write(header.getvalue())
        file.write(content.data)
    if len(content) > WHOLE_BYTES and not is_packed:
        (folder / f"{name}{_DIGESTS}").write_bytes(digests)


def flush(path: Path) -> None:
    """Have a file written to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_facts(folder: Path) -> dict[str, Any]:
    """Read the `facts.json` of a prepared folder."""
    name = f"{folder.name}/{FACTS_FILE}"
    with _found(folder, FACTS_FILE), open(open_regular(folder / FACTS_FILE), "rb") as file:
        text = file.read()
    if not folder.name.endswith(f"-{xxhash.xxh3_64_hexdigest(text)}"):
        raise FileCorrupt(name, "has changed since the dataset was prepared")
    return parsed_facts(text, name)


def parsed_facts(text: bytes, name: str) -> dict[str, Any]:
    """Return what the text of a `facts.json` says."""
    try:
        stated = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileCorrupt(name, f"is no JSON ({error})") from None
    if not isinstance(stated, dict):
        raise FileCorrupt(name, "should hold an object")
    return stated


def _content(array: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _described(array: NDArray[Any], digests: bytes) -> dict[str, Any]:
    """Return the entry of an array in `facts.json`."""
    checksum = checksum_of(digests)
    return {"dtype": array.dtype.str, "shape": list(array.shape), "checksum": checksum}


class _Mapped(NamedTuple):
    """An array with the entry that it should have; `blocks` if they are not verified yet."""

    array: NDArray[Any]
    described: dict[str, Any]
    blocks: VerifiedBlocks | None = None


def _opened(folder: Path, there: Collection[str], name: str, stated: dict[str, Any]) -> _Mapped:
    """Map an array into memory, stored packed or not, and compare its checksum."""
    digests = folder / f"{name}{_DIGESTS}" if f"{name}{_DIGESTS}" in there else None
    file = folder / f"{name}.npy"
    if f"{file.name}{ENDING}" in there:
        file = file.with_name(f"{file.name}{ENDING}")
    shown = f"{folder.name}/{file.name}"
    try:
        with _found(folder, file.name):
            if file.name.endswith(ENDING):
                opened = _array_in(file, stated)
            else:
                opened = _mapped(file, digests)
    except (ValueError, EOFError) as error:
        raise FileCorrupt(shown, str(error)) from None
    if opened.described != stated:
        raise FileCorrupt(shown, CHANGED)
    return opened


def _array_in(file: Path, stated: dict[str, Any]) -> _Mapped:
    """Map this machine's copy of a packed array; without room for one, read it into memory."""
    if not _CHECKSUM.fullmatch(stated["checksum"]):
        raise ValueError("has no checksum")
    size = math.prod(stated["shape"]) * np.dtype(stated["dtype"]).itemsize
    try:
        copy = own_copy(file, stated["checksum"], size)
        with suppress(ValueError, EOFError):
            mapped = _mapped(copy)
            if mapped.described == stated:
                return mapped
        copy.unlink(missing_ok=True)  # it has changed since it was unpacked
        return _mapped(own_copy(file, stated["checksum"], size))
    except NoCopy as error:
        log.warning("%s: no copy on this machine, %s; reading it into memory", file.name, error)
        array = in_memory(file, size)
        return _Mapped(array, _described(array, block_digests(_content(array))))


def _mapped(path: Path, digests: Path | None = None) -> _Mapped:
    """Map a file; without digests beside it, all of it is verified."""
    same = identity(path)
    raise_limit(same[1])
    # Mode c: torch wants writable memory, and writes to it never reach the file.
    with _PARSING:
        array: np.memmap[Any, Any] = np.load(path, mmap_mode="c", allow_pickle=False)
    blocks = blocks_of(path, array.offset, same)
    checksum = blocks.checksum(digests)
    memory: object = array.base
    if isinstance(memory, mmap.mmap):
        expect_random_reads(memory)
    described = {"dtype": array.dtype.str, "shape": list(array.shape), "checksum": checksum}
    return _Mapped(array, described, blocks if digests is not None else None)


@contextmanager
def _found(folder: Path, name: str) -> Iterator[None]:
    """Raise what goes wrong with a file of a prepared folder; see `files/store/publish.py`."""
    with reading(folder, name):
        try:
            yield
        except FileNotFoundError:
            # An NFS client caches that a file was missing, until it lists the folder.
            if folder.name in names_in(folder.parent):
                names_in(folder)
            raise FileMissing(f"{folder.name}/{name}") from None
