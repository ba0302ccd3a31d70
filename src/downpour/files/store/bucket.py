"""A shared directory in an object store.

All of these stores promise that an object appears whole, and never in part. *Created if absent*
takes the place of a file system's links: if several writers create a key, exactly one succeeds.

`obstore` speaks to the servers. Each call retries transient errors for some seconds; the caller's
`RetryPolicy` handles longer outages.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from downpour.base.errors import FileMissing, SharedDirectoryError, SpecError, StoreError, require
from downpour.files.store.layout import Buffer, Moved, unnoticed
from downpour.files.store.publish import RetryPolicy
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
PIECE_BYTES = 2**25
_PART_BYTES = 2**23
"""How much one request of an upload in parts carries; S3 takes no less than 5 MiB."""
UNNAMED = ".unnamed"
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


class StoreAway(SharedDirectoryError):
    """A store does not answer, or fails for another reason than those in `_SAID`."""


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
        RetryPolicy(seconds=_CONFLICT_SECONDS).call(create, errors=(ConflictError,))

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
        return self.uploads if self.uploads and size > PIECE_BYTES else self.objects

    def get(self, key: str, moved: Moved = unnoticed) -> bytes:
        """Return an object's bytes."""
        return b"".join(self._pieces(key, moved))

    def fetch(self, key: str, path: Path) -> None:
        """Write an object's bytes to a new file, without holding them in memory; as `get`.

        An OSError is the file's.
        """
        pieces = self._pieces(key)
        first = next(pieces)  # before there is a file
        with path.open("xb") as file:
            file.write(first)
            file.writelines(pieces)

    def get_range(self, key: str, begin: int, end: int, tag: str = "") -> bytes | None:
        """Return the bytes [begin, end) of an object; None if it has another entity tag now."""
        from obstore.exceptions import PreconditionError

        only: Any = {"range": (begin, end)} | ({"if_match": tag} if tag else {})
        try:
            with self._speaking(key):
                return bytes(self.objects.get(key, options=only).bytes())
        except PreconditionError:
            return None

    def _pieces(self, key: str, moved: Moved = unnoticed) -> Iterator[Buffer]:
        with self._speaking(key):
            found = self.objects.get(key)
            size_bytes = found.meta["size"]
            if size_bytes <= PIECE_BYTES:
                yield memoryview(found.bytes())
                moved(size_bytes)
                return
            for begin in range(0, size_bytes, PIECE_BYTES):
                end = min(begin + PIECE_BYTES, size_bytes)
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
            kind = SharedDirectoryError if said else StoreAway
            raise kind(self.url, said or _first_line(error)) from error


def _first_line(error: BaseException) -> str:
    """Return the message of obstore's error, without its request, its age and its debug view."""
    line = str(error).strip().partition("\n")[0]
    line = re.sub(r"^Generic \w+ error: ", "", line)
    line = re.sub(r"Error performing (list request: Error performing )?", "", line)
    line = re.sub(r" in \d\S*s(, after .*?s)? +- ", ": ", line)
    return line.partition("<")[0].strip(" :") or type(error).__name__
