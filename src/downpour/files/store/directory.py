"""Stores of one experiment's files: in a directory of a POSIX file system, and in a bucket.

`DirectoryStore` finds and checks published files, with retries, because other machines see changes
of a directory late. It never writes in place (`publish.py` writes), and trusts a file only if it
has the size and the checksum that the reader expects. A view is a memory map: it copies nothing,
and views of one file share their memory. A deleted file stays readable through existing views.
`Mount` says which file system serves a folder. `ObjectFiles` reads an experiment's objects, and
keeps copies of them on this machine.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import mmap
import os
import stat
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import xxhash

from downpour.base.errors import FileCorrupt, FileMissing, StoreError
from downpour.base.values import PublishedFile
from downpour.files.store import bucket as of_buckets
from downpour.files.store.bucket import UNNAMED, Bucket
from downpour.files.store.layout import (
    PACKED,
    Buffer,
    Moved,
    check_bare_name,
    check_checksum,
    check_content,
    check_size,
    described,
    packed,
    unnoticed,
    unpacked,
)
from downpour.files.store.publish import (
    TEMPORARY_PREFIX,
    RetryPolicy,
    link,
    publish,
    reading,
    replacing,
    writing,
)

_NETWORK = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "gpfs", "lustre", "nfs", "nfs4", "smb3", "virtiofs"}
)
_HUGE_PAGES = frozenset({"huge=always", "huge=within_size"})
_MEANINGS = {
    "soft": "an unreachable server may end workers; a hard mount waits",
    "softerr": "an unreachable server may end workers; a hard mount waits",
    "nolock": "locks do not reach other machines",
    "local_lock=all": "locks do not reach other machines",
    "local_lock=flock": "locks do not reach other machines",
    "nobrl": "locks do not reach other machines",
}


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted file system."""

    point: Path
    kind: str
    options: tuple[str, ...]

    @property
    def is_network(self) -> bool:
        """Whether its files may be on another machine; file systems in user space (FUSE) count."""
        return self.kind in _NETWORK or self.kind.startswith("fuse")

    @property
    def is_in_small_pages(self) -> bool:
        """Whether memory holds its files in pages of 4 KiB; each page costs a fault."""
        return self.kind == "tmpfs" and _HUGE_PAGES.isdisjoint(self.options)

    @property
    def doubtful(self) -> dict[str, str]:
        """The options that weaken the guarantees of files, and what each of them means."""
        return {option: _MEANINGS[option] for option in self.options if option in _MEANINGS}


def find_mount(path: Path) -> Mount | None:
    """Return the mount of a folder, or None if this system does not tell."""
    import psutil

    try:
        partitions = psutil.disk_partitions(all=True)
    except OSError:
        return None
    mounts = [Mount(Path(p.mountpoint), p.fstype, tuple(p.opts.split(","))) for p in partitions]
    return innermost(mounts, path.resolve())


def innermost(mounts: Iterable[Mount], path: Path) -> Mount | None:
    """Return the mount that serves an absolute path; later mounts cover earlier ones."""
    serving = [mount for mount in mounts if path.is_relative_to(mount.point)]
    return max(reversed(serving), key=lambda mount: len(mount.point.parts), default=None)


_WINDOW_BYTES = 2**20
"""The buffer for a read whose content we hash or discard."""
_USUAL = RetryPolicy()


@dataclass(eq=False)
class DirectoryStore:
    """The files of one experiment, in one directory, which must exist.

    `moved` learns of the bytes of this store's files.
    """

    path: Path
    retry_policy: RetryPolicy = _USUAL
    moved: Moved = unnoticed

    def put_new(self, name: str, chunks: Sequence[Buffer], *, packs: bool = False) -> PublishedFile:
        """Publish the chunks as a new file; see `publish`."""
        put = partial(publish, retry_policy=self.retry_policy, moved=self.moved)
        if not packs:
            return put(self.path, name, chunks)
        file = described(name, b"".join(chunks))
        made = put(self.path, file.name, [packed(chunks)])
        return replace(file, size_bytes=made.size_bytes)

    def link(self, file: PublishedFile, name: str) -> PublishedFile:
        """Publish a file under a second name; see `Store.link`."""
        if link(self.path, file.name, name, self.retry_policy):
            return replace(file, name=name)
        return self.put_new(name, [self.read(file, verified=False)])

    def read(self, file: PublishedFile, *, verified: bool = True) -> memoryview:
        """Map a file into memory; see `Store.read`."""
        check_bare_name(file.name)
        return self.retry_policy.call(partial(self._mapped, file, verified=verified))

    def read_unchecked(self, name: str, *, limit_bytes: int) -> bytes:
        """Return the first bytes of a file if only its name is known."""
        check_bare_name(name)

        def look() -> bytes:
            with self._opened(name) as descriptor:
                return os.read(descriptor, limit_bytes)

        return self.retry_policy.call(look)

    def describe(self, name: str) -> PublishedFile:
        """Return the size and checksum of a file if only its name is known."""
        check_bare_name(name)

        def look() -> PublishedFile:
            digest = xxhash.xxh3_128()
            with self._opened(name) as descriptor:
                if (held := _packed_in(descriptor)) is not None:
                    return replace(described(name, unpacked(name, held)), size_bytes=len(held))
                size_bytes = self._read_through(descriptor, digest)
            return PublishedFile(name=name, size_bytes=size_bytes, checksum=digest.hexdigest())

        return self.retry_policy.call(look)

    def list(self) -> list[str]:
        """Return the names of all published files, sorted."""
        names = self.retry_policy.call_through_outage(partial(names_in, self.path))
        # Hidden names belong to files that publishers are still writing.
        return sorted(name for name in names if not name.startswith("."))

    def delete(self, name: str) -> None:
        """Remove a file, if it exists."""
        self._remove(check_bare_name(name))

    def remove_leftovers(self) -> None:
        """Remove temporary files of dead publishers; call this only once publishing has ended."""
        for name in names_in(self.path):
            if name.startswith(TEMPORARY_PREFIX):
                self._remove(name)

    @functools.cached_property
    def _is_remote(self) -> bool:
        mount = find_mount(self.path)
        return mount is not None and mount.is_network

    def _remove(self, name: str) -> None:
        with writing(self.path, name):
            (self.path / name).unlink(missing_ok=True)

    def _mapped(self, file: PublishedFile, *, verified: bool) -> memoryview:
        with self._opened(file.name) as descriptor:
            check_size(file, os.fstat(descriptor).st_size)
            if (held := _packed_in(descriptor)) is not None:
                self.moved(len(held))
                content = unpacked(file.name, held)
                if verified:
                    check_content(file, content)
                return memoryview(content)
            # On a local disk, this would only cost a second pass over the file.
            if self._is_remote:
                # If the file server cannot deliver data, we get an error here. In a mapped page,
                # that would end the process (SIGBUS), and a thread that waits for a page may hold
                # up all the others.
                digest = xxhash.xxh3_128() if verified else None
                check_size(file, self._read_through(descriptor, digest))
                if digest is not None:
                    check_checksum(file, digest.hexdigest())
            view = memoryview(b"")
            if file.size_bytes:  # an empty file cannot be mapped
                view = memoryview(mmap.mmap(descriptor, file.size_bytes, prot=mmap.PROT_READ))
        if verified and not self._is_remote:
            try:
                check_content(file, view)
            except FileCorrupt:
                view.release()  # before the next attempt, which remaps the file
                raise
        return view

    def _read_through(self, descriptor: int, digest: xxhash.xxh3_128 | None) -> int:
        """Read a file once, and hash it; returns its size in bytes."""
        window = memoryview(bytearray(_WINDOW_BYTES))
        size_bytes = 0
        while got_bytes := os.preadv(descriptor, [window], size_bytes):
            if digest is not None:
                digest.update(window[:got_bytes])
            size_bytes += got_bytes
            self.moved(got_bytes)
        return size_bytes

    @contextlib.contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        with reading(self.path, name):
            try:
                descriptor = open_regular(self.path / name)
            except FileNotFoundError:
                # Listing makes an NFS client forget which names it took for missing, so that the
                # next try asks the server.
                names_in(self.path)
                raise FileMissing(name) from None
            try:
                yield descriptor
            finally:
                os.close(descriptor)


def _packed_in(descriptor: int) -> bytes | None:
    """Return the bytes of a file if it is packed; else leave it at its beginning."""
    if os.pread(descriptor, len(PACKED), 0) != PACKED:
        return None
    return b"".join(iter(partial(os.read, descriptor, _WINDOW_BYTES), b""))


def open_regular(path: Path) -> int:
    """Open a file for reading; return its descriptor."""
    # We refuse anything else in the place of a file: opening a FIFO would wait for its writer, and
    # a link may lead anywhere.
    try:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENXIO}:  # a link, a socket
            raise FileCorrupt(path.name, "is not a regular file") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileCorrupt(path.name, "is not a regular file")
    return descriptor


def read_regular(path: Path) -> bytes:
    """Return the content of a file in the shared directory, whose size and checksum are unknown."""
    with reading(path.parent, path.name), open(open_regular(path), "rb") as file:
        return bytes(unpacked(path.name, file.read()))


def names_in(path: Path) -> list[str]:
    """Return all names in a directory, even hidden ones, in no order.

    An NFS client then asks the server, and forgets its cached negative lookups.
    If the client takes the directory's own name for missing, we must list its parent first.
    """
    with reading(path):
        try:
            return os.listdir(path)  # noqa: PTH208 - the names alone are wanted
        except FileNotFoundError:
            os.listdir(path.parent)  # noqa: PTH208
            return os.listdir(path)  # noqa: PTH208


CACHE_BYTES_MAX = 8 * 2**30


@dataclass(eq=False)
class ObjectFiles:
    """The files of one experiment, as objects under one folder of a bucket.

    The twin of `DirectoryStore` for clusters without a shared folder. This machine keeps fetched
    and published files by checksum (`FileCache`). So its processes together fetch a file once, and
    readers get a memory map of it, as for a local file.
    """

    bucket: Bucket
    folder: str
    cache: FileCache
    retry_policy: RetryPolicy
    moved: Moved = unnoticed

    def put_new(self, name: str, chunks: Sequence[Buffer], *, packs: bool = False) -> PublishedFile:
        """Publish the chunks as a new object; see `Store.put_new`."""
        content = b"".join(chunks)
        file, retried = described(name, content), self.retry_policy.call_through_outage
        content = packed(chunks) if packs else content
        file = replace(file, size_bytes=len(content))
        key, mark = self._key(file.name), uuid.uuid4().hex
        if len(content) <= of_buckets.PIECE_BYTES or not retried(self.bucket.names_once):
            retried(partial(self.bucket.put_new, key, content, mark=mark))
            self.moved(len(content))
        else:
            # Only a whole object can be created on a condition, and it would show no progress.
            unnamed = f"{self.folder}/{UNNAMED}/{mark}"
            try:
                retried(partial(self.bucket.put, unnamed, content, self.moved))
                retried(partial(self.bucket.name_new, unnamed, key, content))
            finally:
                with suppress(StoreError):
                    self.bucket.remove(unnamed)
        self.cache.keep(file.checksum, content)
        return file

    def link(self, file: PublishedFile, name: str) -> PublishedFile:
        """Publish an object under a second name; see `Store.link`.

        We send it again, because few stores can copy an object only if its new name is free.
        """
        return self.put_new(name, [self.read(file)])

    def read(self, file: PublishedFile, *, verified: bool = True) -> memoryview:
        """Return a file's bytes, from this machine's copy if there is one; see `Store.read`."""
        key = self._key(file.name)
        kept = self.cache.find(file)
        if kept is not None:
            return kept
        return self.retry_policy.call(partial(self._fetched, key, file, verified=verified))

    def read_unchecked(self, name: str, *, limit_bytes: int) -> bytes:
        """Return the first bytes of a file if only its name is known."""
        key = self._key(name)
        return self.retry_policy.call(partial(self.bucket.get, key))[:limit_bytes]

    def describe(self, name: str) -> PublishedFile:
        """Return the size and checksum of a file if only its name is known."""
        held = self.retry_policy.call(partial(self.bucket.get, self._key(name)))
        return replace(described(name, unpacked(name, held)), size_bytes=len(held))

    def list(self) -> list[str]:
        """Return the names of all published files, sorted."""
        look = partial(self.bucket.names, self.folder)
        return self.retry_policy.call_through_outage(look)

    def delete(self, name: str) -> None:
        """Remove a file, if it exists. Views of it stay valid, and the cached copy stays, too."""
        self.bucket.remove(self._key(name))

    def remove_leftovers(self) -> None:
        """Remove the objects that dead publishers did not name."""
        for key in self.bucket.keys(f"{self.folder}/{UNNAMED}"):
            self.bucket.remove(key)

    def _key(self, name: str) -> str:
        return f"{self.folder}/{check_bare_name(name)}"

    def _fetched(self, key: str, file: PublishedFile, *, verified: bool) -> memoryview:
        held = self.bucket.get(key, self.moved)
        check_size(file, len(held))
        content = unpacked(file.name, held)
        try:
            check_content(file, content)
        except FileCorrupt:
            if verified:
                raise
        else:
            self.cache.keep(file.checksum, held)
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
        with suppress(OSError, FileCorrupt), path.open("rb") as held:
            if os.fstat(held.fileno()).st_size == file.size_bytes:
                view = memoryview(mmap.mmap(held.fileno(), 0, prot=mmap.PROT_READ))
                content = unpacked(file.name, view)
                if xxhash.xxh3_128_hexdigest(content) == file.checksum:
                    os.utime(path)
                    return memoryview(content)
                view.release()
        return None

    def keep(self, checksum: str, content: bytes) -> None:
        """Keep bytes of this checksum, unless the cache already has them."""
        path = self._path(checksum)
        if path is None or path.exists():
            return
        with suppress(OSError):
            self._folder.mkdir(exist_ok=True)
            with replacing(path) as part:
                part.write_bytes(content)
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
