"""What a store of one experiment's files promises, whatever lies under it.

Names are bare and never reused: a file appears whole under its name or not at all, and what it
holds never changes. Whoever wants to read must therefore bring what the publisher said of the file
(its size and checksum), and a store never guesses which file is the latest. A store knows nothing
of what the files hold; that is `codec`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from downpour.errors import StoreError
from downpour.values import BARE_NAME, PublishedFile, is_bare_name

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Contiguous bytes; an array's are its `data`."""


class Store(Protocol):
    """One experiment's files."""

    def put_new(self, name: str, chunks: Sequence[Buffer]) -> PublishedFile:
        """Publish the chunks, one after the other, as a new file; it is durable on return.

        Raises:
            StoreError: the name is taken or not bare, or the file could not be written.
        """
        ...

    def view(self, file: PublishedFile) -> memoryview:
        """Return a file's bytes, read-only and without copying them; the checksum is not verified.

        Raises:
            FileMissing: patience ended and the file was not there.
            FileCorrupt: patience ended and the size was another than published.
        """
        ...

    def read(self, file: PublishedFile) -> memoryview:
        """Return a file's bytes as `view` does, with the checksum verified.

        Raises:
            FileMissing: patience ended and the file was not there.
            FileCorrupt: patience ended and the size or checksum was another than published.
        """
        ...

    def list(self) -> list[str]:
        """Return the names of all published files, sorted."""
        ...

    def delete(self, name: str) -> None:
        """Remove a file, if it is there. Views of it stay valid."""
        ...


def check_bare_name(name: str) -> str:
    """Return `name` if it names a file inside a directory and nothing else.

    Raises:
        StoreError: the name is not bare.
    """
    if not is_bare_name(name):
        raise StoreError(f"{name[:80]!r} is not {BARE_NAME}")
    return name
