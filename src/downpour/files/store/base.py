"""The promises of any store of one experiment's files.

Names are bare and never reused. A file appears whole under its name or not at all, and its content
never changes. A reader must bring the size and the checksum that the publisher reported, and a
store never guesses which file is the latest. A store knows nothing of the content of files; `codec`
does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from downpour.base.errors import StoreError
from downpour.base.values import BARE_NAME, PublishedFile, is_bare_name

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Contiguous bytes; those of an array are its `data`."""


class Store(Protocol):
    """One experiment's files."""

    def put_new(self, name: str, chunks: Sequence[Buffer]) -> PublishedFile:
        """Publish the chunks, one after another, as a new file; the file is durable on return.

        Raises:
            StoreError: the name is taken or not bare, or the file could not be written.
        """
        ...

    def view(self, file: PublishedFile) -> memoryview:
        """Return a file's bytes, read-only, without copying them or verifying the checksum.

        Raises:
            FileMissing: the file does not exist, even after retries.
            FileCorrupt: the size differs from the published one, even after retries.
        """
        ...

    def read(self, file: PublishedFile) -> memoryview:
        """Return a file's bytes as `view` does, but verify the checksum.

        Raises:
            FileMissing: the file does not exist, even after retries.
            FileCorrupt: size or checksum differ from the published ones, even after retries.
        """
        ...

    def read_unchecked(self, name: str, *, limit_bytes: int) -> bytes:
        """Return the first bytes of a file if only its name is known.

        Raises:
            FileMissing: the file does not exist, even after retries.
        """
        ...

    def describe(self, name: str) -> PublishedFile:
        """Return the size and checksum of a file if only its name is known.

        Raises:
            FileMissing: the file does not exist, even after retries.
        """
        ...

    def list(self) -> list[str]:
        """Return the names of all published files, sorted."""
        ...

    def delete(self, name: str) -> None:
        """Remove a file, if it exists. Views of it stay valid."""
        ...

    def remove_leftovers(self) -> None:
        """Remove files that dead publishers left; call this only once publishing has ended."""
        ...


def check_bare_name(name: str) -> str:
    """Return `name` if it names a file inside a directory and nothing else.

    Raises:
        StoreError: the name is not bare.
    """
    if not is_bare_name(name):
        raise StoreError(f"{name[:80]!r} is not {BARE_NAME}")
    return name
