"""An experiment's files as objects: the twin of `directory` for clusters without a shared folder.

This machine keeps fetched and published files by checksum (`FileCache`). So its processes together
fetch a file once, and readers get a memory map of it, as for a local file.
"""

from __future__ import annotations

import mmap
import os
import uuid
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import xxhash

from downpour.base.errors import FileCorrupt
from downpour.base.values import PublishedFile
from downpour.files.store.base import Buffer, check_bare_name
from downpour.files.store.bucket import Bucket, new_mark
from downpour.files.store.retry import RetryPolicy

CACHE_BYTES_MAX = 8 * 2**30


class ObjectFiles:
    """The files of one experiment, as objects under one folder of a bucket.

    Args:
        bucket: where they are.
        folder: the part of their keys before the last slash.
        cache: this machine's copies of them.
        retry_policy: how long to retry if a file is missing or altered, or the bucket is away.
    """

    def __init__(
        self, bucket: Bucket, folder: str, cache: FileCache, retry_policy: RetryPolicy
    ) -> None:
        self._bucket = bucket
        self._folder = folder
        self._cache = cache
        self._retry_policy = retry_policy

    def put_new(self, name: str, chunks: Sequence[Buffer]) -> PublishedFile:
        """Publish the chunks as a new object; see `Store.put_new`."""
        key = self._key(name)
        content = b"".join(chunks)
        put = partial(self._bucket.put_new, key, content, mark=new_mark())
        self._retry_policy.call_through_outage(put)
        file = _described(name, content)
        self._cache.keep(file.checksum, content)
        return file

    def view(self, file: PublishedFile) -> memoryview:
        """Check a file's size and return its bytes; see `Store.view`."""
        return self._bytes(file, verified=False)

    def read(self, file: PublishedFile) -> memoryview:
        """Check a file's size and checksum and return its bytes; see `Store.read`."""
        return self._bytes(file, verified=True)

    def read_unchecked(self, name: str, *, limit_bytes: int) -> bytes:
        """Return the first bytes of a file if only its name is known."""
        key = self._key(name)
        return self._retry_policy.call(partial(self._bucket.get, key))[:limit_bytes]

    def describe(self, name: str) -> PublishedFile:
        """Return the size and checksum of a file if only its name is known."""
        key = self._key(name)
        return _described(name, self._retry_policy.call(partial(self._bucket.get, key)))

    def list(self) -> list[str]:
        """Return the names of all published files, sorted."""
        look = partial(self._bucket.names, self._folder)
        return self._retry_policy.call_through_outage(look)

    def delete(self, name: str) -> None:
        """Remove a file, if it exists. Views of it stay valid, and the cached copy stays, too."""
        self._bucket.remove(self._key(name))

    def remove_leftovers(self) -> None:
        """Do nothing: an object is whole or does not exist."""

    def _key(self, name: str) -> str:
        return f"{self._folder}/{check_bare_name(name)}"

    def _bytes(self, file: PublishedFile, *, verified: bool) -> memoryview:
        key = self._key(file.name)
        kept = self._cache.find(file)
        if kept is not None:
            return kept
        return self._retry_policy.call(partial(self._fetched, key, file, verified=verified))

    def _fetched(self, key: str, file: PublishedFile, *, verified: bool) -> memoryview:
        content = self._bucket.get(key)
        if len(content) != file.size_bytes:
            reason = f"holds {len(content)} bytes, but {file.size_bytes} were published"
            raise FileCorrupt(file.name, reason)
        checksum = xxhash.xxh3_128_hexdigest(content)
        if checksum == file.checksum:
            self._cache.keep(checksum, content)
        elif verified:
            raise FileCorrupt(
                file.name, f"has checksum {checksum}, but {file.checksum} was published"
            )
        return memoryview(content)


class FileCache:
    """Files of an object store on this machine, named by their checksums; shared by its processes.

    Once the files together have more than `limit_bytes`, we remove those used longest ago. We can
    fetch all of them again, so we sync none of them and ignore failures of the cache.
    """

    def __init__(self, folder: Path, limit_bytes: int = CACHE_BYTES_MAX) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes

    def find(self, file: PublishedFile) -> memoryview | None:
        """Map a file and verify its size and checksum; None if the cache does not have it."""
        path = self._path(file.checksum)
        if path is None or file.size_bytes == 0:
            return None
        with suppress(OSError), path.open("rb") as held:
            if os.fstat(held.fileno()).st_size == file.size_bytes:
                view = memoryview(mmap.mmap(held.fileno(), 0, prot=mmap.PROT_READ))
                if xxhash.xxh3_128_hexdigest(view) == file.checksum:
                    os.utime(path)
                    return view
                view.release()
        return None

    def keep(self, checksum: str, content: bytes) -> None:
        """Keep bytes of this checksum, unless the cache already has them."""
        path = self._path(checksum)
        if path is None or path.exists():
            return
        with suppress(OSError):
            self._folder.mkdir(exist_ok=True)
            part = self._folder / f".{uuid.uuid4().hex}"
            try:
                part.write_bytes(content)
                part.replace(path)
            finally:
                part.unlink(missing_ok=True)
            self._make_room()

    def _path(self, checksum: str) -> Path | None:
        # The checksum came in a message, and names a file here.
        return self._folder / checksum if checksum.isalnum() and checksum.isascii() else None

    def _make_room(self) -> None:
        with os.scandir(self._folder) as found:
            files = [(each.stat().st_mtime, each.stat().st_size, each.path) for each in found]
        left_bytes = sum(size_bytes for _, size_bytes, _ in files)
        for _, size_bytes, path in sorted(files):
            if left_bytes <= self._limit_bytes:
                return
            Path(path).unlink(missing_ok=True)
            left_bytes -= size_bytes


def _described(name: str, content: bytes) -> PublishedFile:
    checksum = xxhash.xxh3_128_hexdigest(content)
    return PublishedFile(name=name, size_bytes=len(content), checksum=checksum)
