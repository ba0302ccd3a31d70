"""An experiment's objects in a bucket as files, and the copies of them that this machine keeps."""

from __future__ import annotations

import mmap
import os
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import xxhash

from downpour.base.errors import FileCorrupt, StoreError
from downpour.base.values import PublishedFile
from downpour.files.store import bucket as of_buckets
from downpour.files.store.base import (
    Buffer,
    Moved,
    check_bare_name,
    check_content,
    check_size,
    described,
    unnoticed,
)
from downpour.files.store.bucket import UNNAMED, Bucket
from downpour.files.store.publish import RetryPolicy

CACHE_BYTES_MAX = 8 * 2**30


class ObjectFiles:
    """The files of one experiment, as objects under one folder of a bucket.

    The twin of `DirectoryStore` for clusters without a shared folder. This machine keeps fetched
    and published files by checksum (`FileCache`). So its processes together fetch a file once, and
    readers get a memory map of it, as for a local file.
    """

    def __init__(
        self,
        bucket: Bucket,
        folder: str,
        cache: FileCache,
        retry_policy: RetryPolicy,
        moved: Moved = unnoticed,
    ) -> None:
        self._bucket = bucket
        self._folder = folder
        self._cache = cache
        self._retry_policy = retry_policy
        self._moved = moved

    def put_new(self, name: str, chunks: Sequence[Buffer]) -> PublishedFile:
        """Publish the chunks as a new object; see `Store.put_new`."""
        content = b"".join(chunks)
        file, retried = described(name, content), self._retry_policy.call_through_outage
        key, mark = self._key(file.name), uuid.uuid4().hex
        if len(content) <= of_buckets.PIECE_BYTES or not retried(self._bucket.names_once):
            retried(partial(self._bucket.put_new, key, content, mark=mark))
            self._moved(len(content))
        else:
            # Only a whole object can be created on a condition, and it would show no progress.
            unnamed = f"{self._folder}/{UNNAMED}/{mark}"
            try:
                retried(partial(self._bucket.put, unnamed, content, self._moved))
                retried(partial(self._bucket.name_new, unnamed, key, content))
            finally:
                with suppress(StoreError):
                    self._bucket.remove(unnamed)
        self._cache.keep(file.checksum, content)
        return file

    def link(self, file: PublishedFile, name: str) -> PublishedFile:
        """Publish an object under a second name; see `Store.link`.

        We send it again, because few stores can copy an object only if its new name is free.
        """
        return self.put_new(name, [self.read(file)])

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
        return described(name, self._retry_policy.call(partial(self._bucket.get, key)))

    def list(self) -> list[str]:
        """Return the names of all published files, sorted."""
        look = partial(self._bucket.names, self._folder)
        return self._retry_policy.call_through_outage(look)

    def delete(self, name: str) -> None:
        """Remove a file, if it exists. Views of it stay valid, and the cached copy stays, too."""
        self._bucket.remove(self._key(name))

    def remove_leftovers(self) -> None:
        """Remove the objects that dead publishers did not name."""
        for key in self._bucket.keys(f"{self._folder}/{UNNAMED}"):
            self._bucket.remove(key)

    def _key(self, name: str) -> str:
        return f"{self._folder}/{check_bare_name(name)}"

    def _bytes(self, file: PublishedFile, *, verified: bool) -> memoryview:
        key = self._key(file.name)
        kept = self._cache.find(file)
        if kept is not None:
            return kept
        return self._retry_policy.call(partial(self._fetched, key, file, verified=verified))

    def _fetched(self, key: str, file: PublishedFile, *, verified: bool) -> memoryview:
        content = self._bucket.get(key, self._moved)
        check_size(file, len(content))
        try:
            check_content(file, content)
        except FileCorrupt:
            if verified:
                raise
        else:
            self._cache.keep(file.checksum, content)
        return memoryview(content)


_SHARE = 16
"""A full cache gives a part in 16 of its files; we look again when a part of the room is used."""


class FileCache:
    """Files of an object store on this machine, named by their checksums; shared by its processes.

    Once the files together have more than `limit_bytes`, we remove those used longest ago. A file
    of a time in the future will be needed then; of these, we remove the last ones first (Belady
    1966). We can fetch all of them again, so we sync none and ignore failures of the cache.
    """

    def __init__(self, folder: Path, limit_bytes: int = CACHE_BYTES_MAX) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._unseen_bytes, self._look_bytes = 0, 0

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
            self._unseen_bytes += len(content)
            if self._unseen_bytes > self._look_bytes:
                self._make_room(path)

    def _path(self, checksum: str) -> Path | None:
        # The checksum came in a message, and names a file here.
        return self._folder / checksum if checksum.isalnum() and checksum.isascii() else None

    def _make_room(self, fresh: Path) -> None:
        with os.scandir(self._folder) as found:
            files = [(each.stat().st_mtime, each.stat().st_size, each.path) for each in found]
        now = time.time()
        # Without locks, which are empty, and without the new file, because its reader needs it.
        files = [one for one in files if one[1] and one[2] != str(fresh)]
        files.sort(key=lambda one: (one[0] > now, one[0] if one[0] <= now else -one[0]))
        left_bytes = fresh.stat().st_size + sum(size_bytes for _, size_bytes, _ in files)
        spare = len(files) // _SHARE if left_bytes > self._limit_bytes else 0
        for number, (_, size_bytes, path) in enumerate(files):
            if left_bytes <= self._limit_bytes and number >= spare:
                break
            Path(path).unlink(missing_ok=True)
            left_bytes -= size_bytes
        # To look at many small files takes longer than to fetch one. Others add files, too.
        self._unseen_bytes = 0
        self._look_bytes = (self._limit_bytes - left_bytes) // _SHARE
