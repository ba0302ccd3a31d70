"""A folder of flat arrays that never changes; its content gives its name.

Its name, the *key*, ends in a checksum of its `facts.json`, which holds the checksum of each array.
So the key determines every byte. A writer holds a lock, writes the folder under a temporary name,
flushes it to the disk, and renames it: it appears whole or not at all.

If compression pays, an array is in `train_x.npy.gz`. Each of its blocks is compressed alone, and
each machine unpacks the ones in use into a file in its own folder, which all its processes map into
memory. MNIST's images shrink 4.3 times. Packing them takes 0.36 s and unpacking 0.16 s (47 MB,
one core).
"""

import gzip
import io
import json
import logging
import math
import os
import shutil
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import IO, Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from downpour.base.errors import FileCorrupt, FileMissing
from downpour.base.values import is_bare_name
from downpour.files.store.directory import names_in, open_regular, read_regular
from downpour.files.store.publish import RetryPolicy, sync_directory
from downpour.files.store.shared_directory import own_folder, range_reader
from downpour.host.machine import expect_random_reads, raise_limit, remove_unused
from downpour.host.paths import FolderLock
from downpour.learning.datasets.digests import (
    BLOCK_BYTES,
    CHANGED,
    WHOLE_BYTES,
    CopiedBlocks,
    VerifiedBlocks,
    block_digests,
    blocks_in,
    blocks_of,
    checksum_of,
    found,
    identity,
    in_blocks,
)

log = logging.getLogger(__name__)

ENDING = ".gz"

_LEVEL = 1
_BYTES_MIN = 2**20  # below, a copy costs more than it saves
_SAMPLES, _SAMPLE_BYTES = 16, 2**14
_TIMES_MIN = 2
_GZIP = 31  # for zlib


def pays(content: NDArray[np.uint8]) -> bool:
    """Say whether bytes [n] should be packed: they are many, and samples shrink to less than half.

    Photographs do not, and then only the samples have been compressed.
    """
    if len(content) < _BYTES_MIN:
        return False
    begins = np.linspace(0, len(content) - _SAMPLE_BYTES, _SAMPLES, dtype=np.int64)
    sample = b"".join(content[begin : begin + _SAMPLE_BYTES].tobytes() for begin in begins)
    return len(zlib.compress(sample, _LEVEL)) * _TIMES_MIN < len(sample)


def own_copy(checksum: str, size_bytes: int) -> tuple[IO[bytes] | None, NDArray[np.uint8]]:
    """Open and map this machine's copy [n] of an array, with holes for blocks that it misses.

    `checksum` names it, and is 32 hexadecimal digits. On a machine without room for copies, the
    memory of this process takes its place.
    """
    folder = own_folder() / "arrays"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / checksum).touch()  # a use keeps it for another month
        file = (folder / checksum).open("r+b", buffering=0)
        if file.seek(0, os.SEEK_END) != size_bytes:  # it is new, or was cut
            remove_unused(folder.iterdir())
            file.truncate(size_bytes)
        raise_limit(size_bytes)
        # Mode c: torch wants writable memory, and writes to it never reach the file.
        content = np.memmap(file, np.uint8, "c")
    except OSError as error:
        reason = error.strerror or str(error)
        log.warning("no copy on this machine, %s; an array is in memory", reason)
        return None, np.zeros(size_bytes, np.uint8)
    expect_random_reads(content.base)
    return file, content


FACTS_FILE = "facts.json"

_DIGESTS = ".digests"
_ENDS, _ENDS_TYPE = ".ends", "<i8"
"""At these bytes of a packed file, its header and its blocks end."""

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
    described = {
        name: _described(array, checksum_of(digests[name])) for name, array in arrays.items()
    }
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
    blocks = {name: left for name, (_, _, left) in opened.items() if left is not None}
    for name in blocks.keys() - set(by_block):
        blocks.pop(name).verify_all()
    arrays = {name: array for name, (array, _, _) in opened.items()}
    return ArrayFolder(facts=facts, arrays=arrays, blocks=blocks)


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
    array, header = np.ascontiguousarray(array), _header(array.dtype, array.shape)
    content = array.reshape(-1).view(np.uint8)
    is_packed = pays(content)
    if not is_packed:
        with (folder / f"{name}.npy").open("wb") as file:
            file.write(header)
            file.write(content.data)
    else:
        ends = []
        with (folder / f"{name}.npy{ENDING}").open("wb") as file:
            for piece in (header, *in_blocks(content.data)):
                # Without a time, so that the same bytes give the same file.
                file.write(gzip.compress(bytes(piece), _LEVEL, mtime=0))
                ends.append(file.tell())
        (folder / f"{name}{_ENDS}").write_bytes(np.array(ends, _ENDS_TYPE).tobytes())
    if len(content) > WHOLE_BYTES or is_packed:
        (folder / f"{name}{_DIGESTS}").write_bytes(digests)


def _header(dtype: np.dtype[Any], shape: Sequence[int]) -> bytes:
    """Return the bytes before an array's own in a file."""
    stated = {"descr": dtype.str, "fortran_order": False, "shape": tuple(shape)}
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, stated)
    return header.getvalue()


def flush(path: Path) -> None:
    """Have a file written to the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def read_facts(folder: Path) -> dict[str, Any]:
    """Read the `facts.json` of a prepared folder."""
    name = f"{folder.name}/{FACTS_FILE}"
    with found(folder, FACTS_FILE), open(open_regular(folder / FACTS_FILE), "rb") as file:
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


def _described(array: NDArray[Any], checksum: str) -> dict[str, Any]:
    """Return the entry of an array in `facts.json`."""
    return {"dtype": array.dtype.str, "shape": list(array.shape), "checksum": checksum}


_Mapped = tuple[NDArray[Any], str, VerifiedBlocks | None]
"""An array, its checksum, and its blocks if they are not verified yet."""


def _opened(folder: Path, there: Collection[str], name: str, stated: dict[str, Any]) -> _Mapped:
    """Map an array into memory, stored packed or not, and compare it with its entry."""
    digests = folder / f"{name}{_DIGESTS}" if f"{name}{_DIGESTS}" in there else None
    is_packed = bool({f"{name}{_ENDS}", f"{name}.npy{ENDING}"} & set(there))
    file = folder / f"{name}.npy{ENDING * is_packed}"
    try:
        with found(folder, file.name):
            if file.name in there and not is_packed:
                opened = _mapped(file, digests)
            else:
                opened = _copied(file, digests, folder / f"{name}{_ENDS}", stated)
    except (ValueError, EOFError) as error:
        raise FileCorrupt(f"{folder.name}/{file.name}", str(error)) from None
    array, checksum, _ = opened
    if _described(array, checksum) != stated:
        raise FileCorrupt(f"{folder.name}/{file.name}", CHANGED)
    return opened


def _copied(
    file: Path, digests_file: Path | None, ends_file: Path, stated: dict[str, Any]
) -> _Mapped:
    """Map this machine's copy of a packed or distant array; blocks come when they are used."""
    is_packed = file.name.endswith(ENDING)
    if digests_file is None or (is_packed and not ends_file.exists()):
        missing = ends_file if is_packed else file  # earlier versions wrote no ends
        raise FileMissing(f"{file.parent.name}/{missing.name}")
    digests = read_regular(digests_file)
    checksum, shape, dtype = checksum_of(digests), stated["shape"], np.dtype(stated["dtype"])
    size = math.prod(shape) * dtype.itemsize
    if is_packed:
        ends = np.frombuffer(read_regular(ends_file), _ENDS_TYPE)
    else:
        begins = np.arange(1 + blocks_in(size)) * BLOCK_BYTES
        ends = len(_header(dtype, shape)) + np.minimum(begins, size)
    # A size that agrees with verified digests is safe to make.
    if checksum != stated["checksum"] or dtype.hasobject or len(ends) != 1 + blocks_in(size):
        raise ValueError(CHANGED)
    read = range_reader(file.parent, file.name)

    def fetched(block: int) -> bytes:
        with found(file.parent, file.name):
            stored = read(int(ends[block]), int(ends[block + 1]))
        with suppress(zlib.error):
            unpack = zlib.decompressobj(_GZIP).decompress
            return unpack(stored, BLOCK_BYTES) if is_packed else stored
        return b""

    copy, content = own_copy(checksum, size)
    array = content.view(dtype).reshape(shape)
    blocks = CopiedBlocks(file, copy, content, digests, fetched)
    return array, checksum, blocks


def _mapped(path: Path, digests: Path | None = None) -> _Mapped:
    """Map a file; without digests beside it, all of it is verified."""
    same = identity(path)
    raise_limit(same[1])
    # Mode c: torch wants writable memory, and writes to it never reach the file.
    with _PARSING:
        array: np.memmap[Any, Any] = np.load(path, mmap_mode="c", allow_pickle=False)
    blocks = blocks_of(path, array.offset, same)
    checksum = blocks.checksum(digests)
    expect_random_reads(array.base)
    return array, checksum, blocks if digests is not None else None
