"""The places of blocks: a folder of this machine, or a bucket.

A place reads a range of a file's bytes, and refuses a file that has changed since it was listed. A
folder is read as it is. Of a bucket, the machine keeps the ranges that it has read (`BlockCache`),
so its processes together fetch a range once.
"""

import io
import mmap
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from hashlib import sha256
from pathlib import Path
from stat import S_ISREG
from typing import Any, Protocol

import xxhash

from downpour.base.errors import FileCorrupt, SpecError, StoreError
from downpour.base.options import CACHE_VARIABLE, cache_of
from downpour.files.store import directory, layout, publish, shared_directory
from downpour.files.store.bucket import Bucket, Found, StoreAway
from downpour.host.paths import FolderLock, is_object_store
from downpour.learning.datasets.source import found_at, local_path

_RETRIES = publish.RetryPolicy(seconds=120.0)
_LOCKS = 64
_LOCK_SECONDS = 60.0
_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class File:
    """A file of examples: its size, and a tag that changes with its content."""

    size_bytes: int
    tag: str


class BlockPlace(Protocol):
    """A folder or bucket; `files` are by their path below it, sorted."""

    address: str
    files: dict[str, File]
    is_remote: bool

    def read(self, key: str, begin: int, end: int) -> layout.Buffer:
        """Return the bytes [begin, end) of a file.

        This raises FileCorrupt if the file has changed or is cut, else StoreError.
        """

    def keep_until(self, key: str, begin: int, end: int, at_seconds: float) -> None:
        """Say when we next need these bytes [s since 1970], if the machine keeps a copy of them."""

    def note(self, name: str, content: bytes) -> None:
        """Keep our note beside the files, if that is possible."""

    def noted(self, name: str) -> bytes | None:
        """Return a note, if there is one."""


def refusal(where: str, accepted: str) -> SpecError:
    """Return the error about a file, block or row of a place."""
    return SpecError("blocks", where, accepted)


def place_of(address: str | os.PathLike[str], pattern: str) -> BlockPlace:
    """List the files at an address whose paths match a pattern of `fnmatch`."""
    place: BlockPlace
    if is_object_store(address):
        place = _Store(str(address), pattern)
    else:
        place = _Folder(local_path("address", address), pattern)
    if not place.files:
        raise SpecError("address", str(address), f"no file there matches files = {pattern!r}")
    return place


class _Folder:
    is_remote = False

    def __init__(self, path: Path, pattern: str) -> None:
        if not path.exists():
            raise SpecError("address", str(path), "no such file or folder")
        self.address = str(path)
        self._folder = path if path.is_dir() else path.parent
        walk = (
            os.walk(path, onerror=_refuse, followlinks=True)
            if path.is_dir()
            else [(path.parent, (), [path.name])]
        )
        # Without `Path`, which took most of the time of 100,000 files.
        join = os.path.join
        skip = len(join(self._folder, ""))
        found = (join(folder, name)[skip:] for folder, _, names in walk for name in names)
        self.files: dict[str, File] = {}
        for key in sorted(key for key in found if _is_wanted(key, pattern)):
            with suppress(OSError):  # a link whose file is gone
                status = os.stat(join(self._folder, key))  # noqa: PTH116
                if S_ISREG(status.st_mode):
                    self.files[key] = _described(status)

    def read(self, key: str, begin: int, end: int) -> layout.Buffer:
        try:
            with (self._folder / key).open("rb") as file:
                file.seek(begin)
                # No more than there is, because an index may promise any number of bytes.
                content = file.read(max(0, min(end, self.files[key].size_bytes) - begin))
                # We look after reading, because another program may write the file meanwhile.
                if _described(os.fstat(file.fileno())) != self.files[key]:
                    raise FileCorrupt(key, "has changed since it was opened")
        except OSError as error:
            raise StoreError(f"{key}: cannot be read: {error.strerror}") from None
        return _whole(key, content, begin, end)

    def keep_until(self, key: str, begin: int, end: int, at_seconds: float) -> None:
        pass

    def note(self, name: str, content: bytes) -> None:
        with suppress(OSError), publish.replacing(self._folder / name) as part:
            part.write_bytes(content)

    def noted(self, name: str) -> bytes | None:
        with suppress(OSError):
            return (self._folder / name).read_bytes()
        return None


class _Store:
    is_remote = True

    def __init__(self, url: str, pattern: str) -> None:
        self.address = url
        bucket, name, found = _RETRIES.call(partial(_listed, url))
        self._bucket: Bucket = bucket
        is_folder = found[0].key != name
        self._prefix = f"{name}/" if is_folder else ""
        listed: dict[str, Found] = {one.key.removeprefix(self._prefix): one for one in found}
        self.files = {
            key: File(one.size_bytes, one.tag)
            for key, one in sorted(listed.items())
            if _is_wanted(key, pattern)
        }
        self._cache = BlockCache(shared_directory.folder_of(bucket.url) / "blocks", cache_bytes())
        # Apart, because a lost note costs the reading of a whole tar.
        self._notes = BlockCache(shared_directory.folder_of(bucket.url) / "notes", sys.maxsize)

    def read(self, key: str, begin: int, end: int) -> layout.Buffer:
        fetch = partial(self._fetched, key, begin, end)
        return self._cache.read(self._name(key, begin, end), fetch)

    def keep_until(self, key: str, begin: int, end: int, at_seconds: float) -> None:
        self._cache.keep_until(self._name(key, begin, end), at_seconds)

    def _name(self, key: str, begin: int, end: int) -> str:
        words = f"{self._bucket.url} {self._prefix}{key} {self.files[key].tag} {begin} {end}"
        return sha256(words.encode()).hexdigest()[:32]

    def _fetched(self, key: str, begin: int, end: int) -> bytes:
        tag = self.files[key].tag.rpartition(" ")[0]
        if begin == end:  # of which S3 has no range
            return b""
        # No error of the shared directory, because a manager without that one ends.
        try:
            content = _RETRIES.call(
                lambda: self._bucket.get_range(f"{self._prefix}{key}", begin, end, tag)
            )
        except StoreError as error:
            reason = getattr(error, "reason", "no such object")
            raise StoreError(f"{key}: cannot be fetched: {reason}") from None
        if content is None:
            raise FileCorrupt(key, "has changed since it was opened")
        return bytes(_whole(key, content, begin, end))

    def note(self, name: str, content: bytes) -> None:
        self._notes.put(sha256(f"{self.address} {name}".encode()).hexdigest()[:32], content)

    def noted(self, name: str) -> bytes | None:
        kept = self._notes.get(sha256(f"{self.address} {name}".encode()).hexdigest()[:32])
        return None if kept is None else bytes(kept)


def _listed(url: str) -> tuple[Bucket, str, list[Found]]:
    """Find the objects at a URL; if the store does not answer, it is no mistake of the user's."""
    try:
        return found_at("address", url)
    except SpecError as error:
        if isinstance(error.__cause__, StoreAway):
            raise StoreError(f"{url} {error.accepted}") from None
        raise


def cache_bytes() -> int:
    """Return how much of buckets' blocks this machine keeps: `worker --cache` sets it."""
    return cache_of(os.environ.get(CACHE_VARIABLE, ""))


def _refuse(error: OSError) -> None:
    raise StoreError(f"{error.filename}: cannot be listed: {error.strerror}") from None


def _described(status: os.stat_result) -> File:
    return File(status.st_size, str(status.st_mtime_ns))


def _is_wanted(key: str, pattern: str) -> bool:
    """Whether it is a file of the user's; hidden ones belong to programs."""
    return fnmatch(key, pattern) and not any(part.startswith(".") for part in key.split("/"))


def _whole(key: str, content: layout.Buffer, begin: int, end: int) -> layout.Buffer:
    if len(content) != end - begin:
        raise FileCorrupt(key, f"is cut: it ends at byte {begin + len(content)}, before {end}")
    return content


class BlockCache(directory.FileCache):
    """Ranges of files on this machine by name; each ends in a digest of its bytes.

    Processes that need the same range at the same time wait for the one that fetches it.
    """

    def read(self, name: str, fetch: Callable[[], bytes]) -> layout.Buffer:
        """Return a range that is kept, or fetch and keep it."""
        if (kept := self.get(name)) is not None:
            return kept
        with ExitStack() as held:
            # Without a lock if the disk is full, or if a process that fetches has been stopped.
            with suppress(OSError):
                self._folder.mkdir(parents=True, exist_ok=True)
                lock = self._folder / f".lock-{int(name[:8], 16) % _LOCKS}"
                held.enter_context(FolderLock(lock, timeout=_LOCK_SECONDS))
            if (kept := self.get(name)) is not None:  # another process has fetched it meanwhile
                return kept
            content = fetch()
            self.put(name, content)
        return content

    def get(self, name: str) -> memoryview | None:
        """Map the range of a name and verify it; None if it is missing or damaged."""
        with suppress(OSError, ValueError), (self._folder / name).open("rb") as held:
            view = memoryview(mmap.mmap(held.fileno(), 0, prot=mmap.PROT_READ))
            content, digest = view[:-_DIGEST_BYTES], view[-_DIGEST_BYTES:]
            if xxhash.xxh3_128_digest(content) == digest:
                if os.fstat(held.fileno()).st_mtime < time.time():
                    with suppress(OSError):  # another user's cache
                        os.utime(self._folder / name)
                return content
        return None

    def keep_until(self, name: str, at_seconds: float) -> None:
        """Say when a range is needed next; a full cache removes the one needed last."""
        with suppress(OSError):
            os.utime(self._folder / name, (at_seconds, at_seconds))

    def put(self, name: str, content: bytes) -> None:
        """Keep bytes under a name, in place of those before."""
        with suppress(OSError):
            (self._folder / name).unlink()
        self.keep(name, content + xxhash.xxh3_128_digest(content))


class RangeFile(io.RawIOBase):
    """A file for libraries that seek and read, over a function that returns a range of it."""

    def __init__(self, read: Callable[[int, int], layout.Buffer], size_bytes: int) -> None:
        super().__init__()
        self._read_range, self._size, self._at = read, size_bytes, 0

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def seekable(self) -> bool:
        """Say that it can be read from any place."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place; as `io.RawIOBase.seek`."""
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read on from there; returns how many bytes."""
        end = min(self._at + len(buffer), self._size)
        if end <= self._at:
            return 0
        buffer[: end - self._at] = self._read_range(self._at, end)
        count, self._at = end - self._at, end
        return count
