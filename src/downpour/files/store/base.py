"""The interface of a store, and the store in memory.

Names are bare and never reused. A file appears whole under its name or not at all, and its content
never changes. A reader must bring the size and the checksum that the publisher reported, and a
store never guesses which file is the latest. A store knows nothing of the content of files;
`header.py` does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import xxhash

from downpour.base.errors import FileCorrupt, FileMissing, StoreError
from downpour.base.values import BARE_NAME, PublishedFile, is_bare_name

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Contiguous bytes; those of an array are its `data`."""

CHECKSUM = "{checksum}"
"""Stands for a new file's checksum in the name that its publisher gives it."""

Moved: TypeAlias = Callable[[int], object]
"""Learns how many more bytes of files were read or written."""


def unnoticed(_: int) -> None:
    """Ignore how many bytes were moved."""


class Store(Protocol):
    """One experiment's files."""

    def put_new(self, name: str, chunks: Sequence[Buffer]) -> PublishedFile:
        """Publish the chunks, one after another, as a new file; the file is durable on return.

        If the name has `CHECKSUM` in it, the file's checksum takes that place.

        Raises:
            StoreError: the name is taken or not bare, or the file could not be written.
        """

    def link(self, file: PublishedFile, name: str) -> PublishedFile:
        """Publish a file under a second name, if possible without writing its bytes again.

        Raises:
            StoreError: as `put_new`.
            FileMissing: the file does not exist, and this process has no copy of it.
        """

    def view(self, file: PublishedFile) -> memoryview:
        """Return a file's bytes, read-only, without copying them or verifying the checksum.

        Raises:
            FileMissing: the file does not exist, even after retries.
            FileCorrupt: the size differs from the published one, even after retries.
        """

    def read(self, file: PublishedFile) -> memoryview:
        """Return a file's bytes as `view` does, but verify the checksum.

        Raises:
            FileMissing: the file does not exist, even after retries.
            FileCorrupt: size or checksum differ from the published ones, even after retries.
        """

    def read_unchecked(self, name: str, *, limit_bytes: int) -> bytes:
        """Return the first bytes of a file if only its name is known.

        Raises:
            FileMissing: the file does not exist, even after retries.
        """

    def describe(self, name: str) -> PublishedFile:
        """Return the size and checksum of a file if only its name is known.

        Raises:
            FileMissing: the file does not exist, even after retries.
        """

    def list(self) -> list[str]:
        """Return the names of all published files, sorted."""

    def delete(self, name: str) -> None:
        """Remove a file, if it exists. Views of it stay valid."""

    def remove_leftovers(self) -> None:
        """Remove files that dead publishers left; call this only once publishing has ended."""


def check_bare_name(name: str) -> str:
    """Return `name` if it names a file inside a directory and nothing else.

    Raises:
        StoreError: the name is not bare.
    """
    if not is_bare_name(name):
        raise StoreError(f"{name[:80]!r} is not {BARE_NAME}")
    return name


def described(name: str, content: Buffer) -> PublishedFile:
    """Return the size and checksum of a file with this content."""
    checksum = xxhash.xxh3_128_hexdigest(content)
    return named(name, len(content), checksum)


def named(name: str, size_bytes: int, checksum: str) -> PublishedFile:
    """Return a new file's description, under the name that it gets; see `Store.put_new`."""
    name = name.replace(CHECKSUM, checksum)
    return PublishedFile(name=name, size_bytes=size_bytes, checksum=checksum)


def check_size(file: PublishedFile, size_bytes: int) -> None:
    """Raise FileCorrupt if a file does not have the published size."""
    if size_bytes != file.size_bytes:
        reason = f"holds {size_bytes} bytes, but {file.size_bytes} were published"
        raise FileCorrupt(file.name, reason)


def check_content(file: PublishedFile, content: Buffer) -> None:
    """Raise FileCorrupt if a file's content does not have the published checksum."""
    check_checksum(file, xxhash.xxh3_128_hexdigest(content))


def check_checksum(file: PublishedFile, checksum: str) -> None:
    """Raise FileCorrupt if a file's checksum is not the published one."""
    if checksum != file.checksum:
        reason = f"has checksum {checksum}, but {file.checksum} was published"
        raise FileCorrupt(file.name, reason)


class MemoryStore:
    """The files of one experiment, as bytes in a dictionary.

    For tests and for experiments in one process. It keeps the same contract as `DirectoryStore`,
    errors included, without files and without retries: a file that is missing now stays missing. We
    copy chunks once, because their owner may change them later.
    """

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}

    def put_new(self, name: str, chunks: Sequence[Buffer]) -> PublishedFile:
        """Keep a copy of the chunks under a new name; see `Store.put_new`."""
        check_bare_name(name)
        content = b"".join(bytes(memoryview(chunk)) for chunk in chunks)
        file = described(name, content)
        if file.name in self._files:
            raise StoreError(f"{name}: already published; Downpour never reuses names")
        self._files[file.name] = content
        return file

    def link(self, file: PublishedFile, name: str) -> PublishedFile:
        """Publish a file under a second name; see `Store.link`."""
        return self.put_new(name, [self.view(file)])

    def view(self, file: PublishedFile) -> memoryview:
        """Check a file's size and return its bytes; see `Store.view`."""
        content = self._content(file.name)
        check_size(file, len(content))
        return memoryview(content)

    def read(self, file: PublishedFile) -> memoryview:
        """Check a file's size and checksum and return its bytes; see `Store.read`."""
        view = self.view(file)
        check_content(file, view)
        return view

    def read_unchecked(self, name: str, *, limit_bytes: int) -> bytes:
        """Return the first bytes of a file if only its name is known."""
        return self._content(name)[:limit_bytes]

    def describe(self, name: str) -> PublishedFile:
        """Return the size and checksum of a file if only its name is known; raises FileMissing."""
        return described(name, self._content(name))

    def _content(self, name: str) -> bytes:
        content = self._files.get(check_bare_name(name))
        if content is None:
            raise FileMissing(name)
        return content

    def __contains__(self, name: str) -> bool:
        """Whether a published file has that name."""
        return name in self._files

    def list(self) -> list[str]:
        """Return the names of all published files, sorted."""
        return sorted(self._files)

    def delete(self, name: str) -> None:
        """Remove a file, if it exists. Views of it stay valid."""
        self._files.pop(check_bare_name(name), None)

    def remove_leftovers(self) -> None:
        """Do nothing: a file is whole or does not exist."""
