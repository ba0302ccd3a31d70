"""A shared directory in an object store, and an experiment's objects as files.

All of these stores promise that an object appears whole, and never in part. *Created if absent*
takes the place of a file system's links: if several writers create a key, exactly one succeeds. If
a store ignored this condition, two managers or two attempts could silently replace each other's
files, so `check_conditions` refuses such a store.

`obstore` speaks to the servers. Each call retries transient errors for some seconds; the caller's
`RetryPolicy` handles longer outages.
"""

from __future__ import annotations

import mmap
import os
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from downpour.base.errors import (
    FileCorrupt,
    FileMissing,
    SharedDirectoryError,
    SpecError,
    StoreError,
)
from downpour.base.values import PublishedFile
from downpour.files.store.base import (
    Buffer,
    Moved,
    check_bare_name,
    check_content,
    check_size,
    described,
    unnoticed,
)
from downpour.files.store.publish import RetryPolicy
from downpour.host.extras import require
from downpour.host.paths import checked_url

if TYPE_CHECKING:
    from obstore.store import ObjectStore


# Short, because the retries of the shared directory begin where these end, and they log a line.
_CLIENT: Any = {"timeout": "120s", "connect_timeout": "5s"}
# A timeout covers the whole request. We read a large object in pieces. But some stores can create
# one on a condition only in a single request, which may take as long as 5 GB need at 1 Mbit/s.
_UPLOADS: Any = {"timeout": "12h", "connect_timeout": "5s"}
_RETRIES: Any = {"max_retries": 3, "retry_timeout": timedelta(seconds=10)}
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_WRITER = "downpour-writer"
_PROBE = ".doctor-"
_CONFLICT_SECONDS = 2.0
"""How long to retry a conflict; then it counts as an outage, which callers may wait for."""
_PIECE_BYTES = 2**25
_PART_BYTES = 2**23
"""How much one request of an upload in parts carries; S3 takes no less than 5 MiB."""
_UNNAMED = ".unnamed"
# Error codes in the body of servers' answers, and their meaning for the user.
_SAID = {
    "<Code>NoSuchBucket": "no such bucket",
    "<Code>ContainerNotFound": "no such container",
    "<Code>AccessDenied": "permission denied",
    "<Code>InvalidAccessKeyId": "the store does not know the access key",
    "<Code>SignatureDoesNotMatch": "the secret key does not belong to the access key",
    # The address at which a cloud's machines ask for their own credentials, if there are no others.
    "169.254.169.254": "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
}


class ConflictError(SharedDirectoryError):
    """A store refused to make an object that does not exist; S3 asks callers to try again."""


class KeyTakenError(StoreError):
    """Another writer made an object of that key."""


@dataclass(frozen=True, slots=True)
class Found:
    """A listed object: its key, a tag that changes with its content, its last change, its size."""

    key: str
    tag: str
    changed_seconds: float
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """A place in an object store: the objects whose keys begin with its prefix.

    `url` is the user's URL, without a slash at its end; `objects` is `obstore`'s store, and
    `uploads` the same one, with more time for a large object.
    """

    url: str
    objects: ObjectStore
    uploads: ObjectStore | None = None

    @classmethod
    def at(cls, url: str) -> Bucket:
        """Return the bucket that a URL names, without looking at it yet.

        Credentials, region and endpoint come from the environment, under the provider's own names.
        """
        url = checked_url("shared", url)
        require(f"--shared {url}", "objects")
        from obstore.exceptions import BaseError
        from obstore.store import from_url

        # Allow plain HTTP only if the user named such an endpoint.
        endpoint = next((os.environ[name] for name in _ENDPOINTS if os.environ.get(name)), "")
        plain = {"allow_http": True} if endpoint.startswith("http://") else {}
        options: Any = {**_CLIENT, **plain}, {**_UPLOADS, **plain}
        known = not url.startswith("s3:") or "AWS_COPY_IF_NOT_EXISTS" in os.environ
        how: Any = {} if known else {"copy_if_not_exists": "multipart"}
        try:
            stores = [
                from_url(url, client_options=one, retry_config=_RETRIES, **how) for one in options
            ]
        except (BaseError, ValueError) as error:
            raise SpecError("shared", url, f"cannot be used: {_first_line(error)}") from None
        return cls(url, *stores)

    def put_new(self, key: str, content: bytes | Path, *, mark: str = "") -> None:
        """Create an object of these bytes, or of a file's; it is durable on return.

        `mark` names the publication. A caller that repeats a failed call passes the same mark,
        because the store may have created the object and lost the answer.
        """
        create = partial(self._put_new, key, content, mark or uuid.uuid4().hex)
        RetryPolicy(seconds=_CONFLICT_SECONDS).call(
            create, when=lambda error: isinstance(error, ConflictError)
        )

    def _put_new(self, key: str, content: bytes | Path, mark: str) -> None:
        with self._creating(key, lambda: self.objects.get(key).attributes.get(_WRITER) == mark):
            # We use a single request, because the store checks its condition when the object
            # appears.
            self._store_for(content).put(
                key, content, attributes={_WRITER: mark}, mode="create", use_multipart=False
            )

    def name_new(self, unnamed: str, key: str, content: bytes) -> None:
        """Create an object from another one, which holds `content`; see `put_new`."""
        # Copies have no mark. The same name and bytes are the same publication.
        with self._creating(key, lambda: self.get(key) == content):
            self._store_for(content).copy(unnamed, key, overwrite=False)

    def names_once(self) -> bool:
        """Whether `name_new` creates a key only once here."""
        # Azure may answer before it has copied, and then misses an original that we remove.
        if self.url.startswith("s3:"):
            with self._probe() as key:
                try:
                    self.name_new(key, key, b"")
                except StoreError as error:  # few other stores can do it
                    return isinstance(error, KeyTakenError)
        return False

    def put(self, key: str, content: bytes, moved: Moved = unnoticed) -> None:
        """Create an object, or replace the one of that key; only for keys with one writer.

        A large object is sent in parts; `moved` learns of each once it has arrived.
        """
        view = memoryview(content)
        parts = [view[at : at + _PART_BYTES] for at in range(0, len(view), _PART_BYTES)]

        def read() -> Iterator[Buffer]:
            for number, part in enumerate(parts):
                # The client reads one part ahead of the one that it sends.
                if number > 1:
                    moved(len(parts[number - 2]))
                yield part

        with self._speaking(key):
            self._store_for(content).put(
                key,
                read() if len(parts) > 1 else content,
                use_multipart=len(parts) > 1,
                chunk_size=_PART_BYTES,
                max_concurrency=1,
            )
        moved(sum(map(len, parts[-2:])))

    def _store_for(self, content: bytes | Path) -> ObjectStore:
        """Return the store whose timeout suits the size of an object."""
        size = content.stat().st_size if isinstance(content, Path) else len(content)
        return self.uploads if self.uploads and size > _PIECE_BYTES else self.objects

    def get(self, key: str, moved: Moved = unnoticed) -> bytes:
        """Return an object's bytes."""
        with self._speaking(key):
            return b"".join(self._pieces(key, self.objects.get(key), moved))

    def fetch(self, key: str, path: Path) -> None:
        """Write an object's bytes to a new file, without holding them in memory; as `get`."""
        with self._speaking(key):
            found = self.objects.get(key)  # before there is a file
            with path.open("xb") as file:
                file.writelines(self._pieces(key, found))

    def get_range(self, key: str, begin: int, end: int, tag: str) -> bytes | None:
        """Return the bytes [begin, end) of an object; None if its entity tag is another now."""
        from obstore.exceptions import PreconditionError

        only: Any = {"range": (begin, end), "if_match": tag}
        try:
            with self._speaking(key):
                return bytes(self.objects.get(key, options=only).bytes())
        except PreconditionError:
            return None

    def _pieces(self, key: str, found: Any, moved: Moved = unnoticed) -> Iterator[Buffer]:
        size_bytes = found.meta["size"]
        if size_bytes <= _PIECE_BYTES:
            yield memoryview(found.bytes())
            moved(size_bytes)
            return
        for begin in range(0, size_bytes, _PIECE_BYTES):
            end = min(begin + _PIECE_BYTES, size_bytes)
            only: Any = {"range": (begin, end), "if_match": found.meta["e_tag"]}
            yield memoryview(self.objects.get(key, options=only).bytes())
            moved(end - begin)

    def names(self, folder: str) -> list[str]:
        """Return the names of the objects directly under a folder, sorted."""
        with self._speaking(folder):
            listed = self.objects.list_with_delimiter(f"{folder}/" if folder else None)
            return sorted(found["path"].rpartition("/")[2] for found in listed["objects"])

    def keys(self, folder: str) -> list[str]:
        """Return the keys of all objects below a folder and its subfolders, sorted."""
        return [found.key for found in self.found(folder) if found.key.startswith(f"{folder}/")]

    def found(self, place: str) -> list[Found]:
        """Return the object of a key, if it exists, and all objects below it, sorted by key."""
        with self._speaking(place):
            # A store lists by whole parts of keys: `a` finds `a/b`, and neither `a` nor `ab`.
            listed = [meta for page in self.objects.list(place) for meta in page]
            with suppress(FileNotFoundError):
                listed.append(self.objects.head(place))
        found = {meta["path"]: meta for meta in listed}
        return [
            Found(
                key,
                f"{meta['e_tag']} {meta['size']}",
                meta["last_modified"].timestamp(),
                meta["size"],
            )
            for key, meta in sorted(found.items())
        ]

    def remove(self, key: str) -> None:
        """Remove the object of a key, if it exists."""
        with suppress(FileMissing), self._speaking(key):
            self.objects.delete(key)

    def check_conditions(self) -> None:
        """Check that we can make, read and remove objects here, and make a key only once."""
        with self._probe() as key:
            with suppress(KeyTakenError):
                self.put_new(key, b"second")
                reason = (
                    "ignores conditional writes (If-None-Match), so writers would "
                    "replace each other's files; use a store that supports them"
                )
                raise SharedDirectoryError(self.url, reason)
            if self.get(key) != b"first":
                raise SharedDirectoryError(self.url, "returns different bytes than we stored")

    @contextmanager
    def _probe(self) -> Iterator[str]:
        key = f"{_PROBE}{uuid.uuid4().hex[:12]}"
        self.put_new(key, b"first")
        try:
            yield key
        finally:
            with suppress(StoreError):  # the error already says it
                self.remove(key)

    @contextmanager
    def _creating(self, key: str, is_ours: Callable[[], bool]) -> Iterator[None]:
        """Translate the errors of a request that creates a key, which may be `is_ours` already.

        S3 also refuses with 409 `ConditionalRequestConflict` while another request for the key is
        under way, and with 412 for an object that someone removes at that moment. It has forgotten
        an upload in parts that a first request has completed. A refusal without an object is the
        store's failure, so callers retry it like an outage.
        """
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        try:
            try:
                with self._speaking(key):
                    yield
            except (AlreadyExistsError, PreconditionError):
                # An answer may get lost after the store has made the object. The repeated request
                # then finds the object of the first one.
                with self._speaking(key):
                    if is_ours():
                        return
                taken = f"{key}: already published; Downpour never reuses names"
                raise KeyTakenError(taken) from None
        except FileMissing:
            reason = f"refuses to create {key}, although no such object exists"
            raise ConflictError(self.url, reason) from None

    @contextmanager
    def _speaking(self, key: str) -> Iterator[None]:
        """Translate the errors of a block; the caller handles taken keys."""
        from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

        try:
            yield
        except (AlreadyExistsError, PreconditionError):
            raise
        except (BaseError, OSError) as error:
            said = next((means for sign, means in _SAID.items() if sign in str(error)), "")
            if isinstance(error, FileNotFoundError) and not said:
                raise FileMissing(key.rpartition("/")[2]) from None
            raise SharedDirectoryError(self.url, said or _first_line(error)) from error


def _first_line(error: BaseException) -> str:
    """Return the message of obstore's error, without its request, its age and its debug view."""
    line = str(error).strip().partition("\n")[0]
    line = re.sub(r"^Generic \w+ error: ", "", line)
    line = re.sub(r"Error performing (list request: Error performing )?", "", line)
    line = re.sub(r" in \d\S*s(, after .*?s)? +- ", ": ", line)
    return line.partition("<")[0].strip(" :") or type(error).__name__


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
        if len(content) <= _PIECE_BYTES or not retried(self._bucket.names_once):
            retried(partial(self._bucket.put_new, key, content, mark=mark))
            self._moved(len(content))
        else:
            # Only a whole object can be created on a condition, and it would show no progress.
            unnamed = f"{self._folder}/{_UNNAMED}/{mark}"
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
        for key in self._bucket.keys(f"{self._folder}/{_UNNAMED}"):
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

    Once the files together have more than `limit_bytes`, we remove those used longest ago. We can
    fetch all of them again, so we sync none of them and ignore failures of the cache.
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
                self._make_room()

    def _path(self, checksum: str) -> Path | None:
        # The checksum came in a message, and names a file here.
        return self._folder / checksum if checksum.isalnum() and checksum.isascii() else None

    def _make_room(self) -> None:
        with os.scandir(self._folder) as found:
            files = [(each.stat().st_mtime, each.stat().st_size, each.path) for each in found]
        files = sorted(one for one in files if one[1])  # without locks, which are empty
        left_bytes = sum(size_bytes for _, size_bytes, _ in files)
        spare = len(files) // _SHARE if left_bytes > self._limit_bytes else 0
        for number, (_, size_bytes, path) in enumerate(files):
            if left_bytes <= self._limit_bytes and number >= spare:
                break
            Path(path).unlink(missing_ok=True)
            left_bytes -= size_bytes
        # To look at many small files takes longer than to fetch one. Others add files, too.
        self._unseen_bytes = 0
        self._look_bytes = (self._limit_bytes - left_bytes) // _SHARE
