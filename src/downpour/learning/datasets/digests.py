"""Verifies an array's file block by block, when a block is first used.

The checksum of an array is the digest of its blocks' digests. A block is read, not mapped. So it
does not count as the process's memory, and a failure of a file server is an exception here. In a
mapped page it would be a fault.
"""

import fcntl
import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from downpour.base.errors import FileCorrupt, FileMissing
from downpour.files.store import directory, layout, publish, shared_directory

BLOCK_BYTES = 2**17
"""Small enough that a random photograph brings little else; 1 TB has 128 MB of digests."""

WHOLE_BYTES = 2**26
"""A smaller array has no digests beside it: to read all of it takes under a second."""

_LOOKS, _LOOK_SECONDS = 2400, 0.025
_FETCHES = 16
_AT_ONCE = 1024
"""Each block that waits for its fetch takes memory."""

CHANGED = "has changed since the dataset was prepared"

Identity = tuple[int, int, int]
"""Of a regular file; a file that replaces it has another. The second part is its size in bytes."""


def block_digests(content: memoryview) -> bytes:
    """Return the digests of some bytes, 16 for each block."""
    return b"".join(map(xxhash.xxh3_128_digest, in_blocks(content)))


def in_blocks(content: memoryview) -> Iterator[memoryview]:
    """Yield the blocks of some bytes, in order."""
    return (content[one : one + BLOCK_BYTES] for one in range(0, len(content), BLOCK_BYTES))


def blocks_in(size_bytes: int) -> int:
    """Return the number of blocks of some bytes."""
    return -(-size_bytes // BLOCK_BYTES)


def checksum_of(digests: bytes) -> str:
    """Return the checksum of the bytes that have these digests."""
    return xxhash.xxh3_128_hexdigest(digests)


def identity(path: Path) -> Identity:
    """Return the identity of a regular file."""
    with open(directory.open_regular(path), "rb") as file:
        return _identity_in(file)


def _identity_in(file: IO[bytes]) -> Identity:
    stat = os.fstat(file.fileno())
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


@contextmanager
def found(folder: Path, name: str) -> Iterator[None]:
    """Raise what goes wrong with a file of a prepared folder; see `files/store/publish.py`."""
    with publish.reading(folder, name):
        try:
            yield
        except FileNotFoundError:
            # An NFS client caches that a file was missing, until it lists the folder.
            if folder.name in directory.names_in(folder.parent):
                directory.names_in(folder)
            raise FileMissing(f"{folder.name}/{name}") from None


class VerifiedBlocks:
    """The blocks of a file from `offset` on, and which of them this process has verified.

    Several threads may use it: at worst, two read the same block.
    """

    def __init__(self, path: Path, offset: int, same: Identity) -> None:
        self._path = path
        self._shown = f"{path.parent.name}/{path.name}"
        self._offset = offset
        self._same = same
        self._bytes = same[1] - offset
        self._count = blocks_in(self._bytes)
        self._digests = b""
        self._unverified = np.ones(self._count, bool)
        self._left = self._count

    def checksum(self, digests: Path | None = None) -> str:
        """Return the file's checksum by the digests beside it; without them, read all of it."""
        if self._left and digests is not None:
            self._digests = directory.read_regular(digests)
        elif self._left:
            self._digests = b"".join(self._read(range(self._count)))
            self._note(np.arange(self._count))
        return checksum_of(self._digests)

    def verify(self, rows: NDArray[np.int64], row_bytes: int) -> None:
        """Verify the blocks of some rows [n]; `checksum` was right before.

        This raises FileCorrupt if a block has changed, FileMissing if the file is gone, else
        StoreError.
        """
        if not self._left or not len(rows) or not row_bytes:
            return
        first, last = rows * row_bytes // BLOCK_BYTES, ((rows + 1) * row_bytes - 1) // BLOCK_BYTES
        spans = first[:, None] + np.arange((last - first).max() + 1)
        self._verify(np.unique(np.minimum(spans, last[:, None])))

    def verify_all(self) -> None:
        """Verify all blocks."""
        for begin in range(0, self._count, _AT_ONCE):
            self._verify(np.arange(begin, min(begin + _AT_ONCE, self._count)))

    def _verify(self, blocks: NDArray[np.int64]) -> None:
        unverified = blocks[self._unverified[blocks]]
        if not len(unverified):
            return
        with found(self._path.parent, self._path.name):
            for block, digest in zip(unverified, self._read(unverified), strict=True):
                if digest != self._digests[16 * block : 16 * block + 16]:
                    raise FileCorrupt(self._shown, f"block {block} {CHANGED}")
        self._note(unverified)

    def _note(self, blocks: NDArray[np.int64]) -> None:
        self._unverified[blocks] = False
        self._left = int(np.count_nonzero(self._unverified))

    def _read(self, blocks: Sequence[int] | NDArray[Any]) -> Iterator[bytes]:
        window = bytearray(min(BLOCK_BYTES, self._bytes))
        with open(directory.open_regular(self._path), "rb", buffering=0) as file:
            if _identity_in(file) != self._same:  # then we have mapped another file
                raise FileCorrupt(self._shown, "has been replaced since it was opened")
            for block in blocks:
                file.seek(self._offset + int(block) * BLOCK_BYTES)
                yield xxhash.xxh3_128_digest(memoryview(window)[: _filled(file, window)])


class CopiedBlocks(VerifiedBlocks):
    """The blocks of this machine's copy of a file, which are fetched when they are first used.

    A block that the copy misses does not have its digest. `content` [n] maps the file `copy`, or
    without one is this process's own; it also takes the blocks for which the disk has no room.
    """

    def __init__(
        self,
        path: Path,
        copy: IO[bytes] | None,
        content: NDArray[np.uint8],
        digests: bytes,
        fetched: Callable[[int], bytes],
    ) -> None:
        super().__init__(path, 0, (0, len(content), 0))
        self._copy = copy
        if copy is not None:
            weakref.finalize(self, copy.close)
        self._content = content
        self._digests = digests
        self._fetched = fetched

    def _verify(self, blocks: NDArray[np.int64]) -> None:
        unverified = blocks[self._unverified[blocks]]
        missing = [one for one in unverified.tolist() if not self._is_there(one)]
        if missing:
            with ThreadPoolExecutor(_FETCHES) as fetching:
                list(fetching.map(self._fill, missing))
        self._note(unverified)

    def _is_there(self, block: int) -> bool:
        if self._copy is not None:
            with suppress(OSError):
                held = os.pread(self._copy.fileno(), BLOCK_BYTES, block * BLOCK_BYTES)
                return self._is_right(block, held)
        return False

    def _is_right(self, block: int, content: layout.Buffer) -> bool:
        digest = self._digests[16 * block : 16 * block + 16]
        return xxhash.xxh3_128_digest(content) == digest

    def _fill(self, block: int) -> None:
        begin = block * BLOCK_BYTES
        with _alone(self._copy, begin):
            if self._is_there(block):  # another process has fetched it meanwhile
                return
            content = self._fetched(block)
            if not self._is_right(block, content):
                raise FileCorrupt(self._shown, f"block {block} {CHANGED}")
            if self._copy is not None:
                with suppress(OSError):
                    os.pwrite(self._copy.fileno(), content, begin)
        if self._is_there(block):
            return
        mount = directory.find_mount(Path(self._copy.name)) if self._copy is not None else None
        if mount is not None and mount.kind == "tmpfs":  # to touch a hole would be a fault (SIGBUS)
            raise shared_directory.not_kept("full")
        self._content[begin : begin + len(content)] = np.frombuffer(content, np.uint8)


@contextmanager
def _alone(copy: IO[bytes] | None, begin: int) -> Iterator[None]:
    """Keep other processes from a block for at most a minute; then they fetch it, too."""
    if copy is None:
        yield
        return
    with suppress(OSError):  # on a file system without locks
        for _ in range(_LOOKS):
            with suppress(BlockingIOError):
                fcntl.lockf(copy, fcntl.LOCK_EX | fcntl.LOCK_NB, BLOCK_BYTES, begin)
                break
            time.sleep(_LOOK_SECONDS)
    try:
        yield
    finally:
        with suppress(OSError):
            fcntl.lockf(copy, fcntl.LOCK_UN, BLOCK_BYTES, begin)


def _filled(file: Any, window: bytearray) -> int:
    """Read until the window is full or the file ends; return the number of bytes."""
    count = 0
    while count < len(window) and (more := file.readinto(memoryview(window)[count:])):
        count += more
    return count


blocks_of = lru_cache(maxsize=256)(VerifiedBlocks)
"""Returns the blocks of a file with an identity, which all of the process share."""
