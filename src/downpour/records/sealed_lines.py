"""Checksummed lines: each is an XXH3-64 of the rest, then what it says.

A crash tears the last one, and a bad disk alters any: what is read back is what was written whole.
"""

from __future__ import annotations

from collections.abc import Iterator

import xxhash


def seal(text: bytes) -> bytes:
    """Return a line that says so; the text has no line end."""
    return xxhash.xxh3_64_hexdigest(text).encode() + b" " + text + b"\n"


def whole_lines(content: bytes) -> Iterator[bytes]:
    """Yield what the lines say that are whole; the others count as not there."""
    for line in content.split(b"\n")[:-1]:
        checksum, _, text = line.partition(b" ")
        if xxhash.xxh3_64_hexdigest(text).encode() == checksum:
            yield text
