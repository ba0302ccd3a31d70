"""Checksummed lines: each is an XXH3-64 of its text, then the text.

A crash may tear the last line, and a bad disk may alter any. Readers get back only complete lines.
"""

from __future__ import annotations

from collections.abc import Iterator

import xxhash


def seal(text: bytes) -> bytes:
    """Return the line for a text that has no line end."""
    return xxhash.xxh3_64_hexdigest(text).encode() + b" " + text + b"\n"


def whole_lines(content: bytes) -> Iterator[bytes]:
    """Yield the texts of the lines whose checksum is right."""
    # After the last line end comes a torn line, or nothing.
    for line in content.split(b"\n")[:-1]:
        checksum, _, text = line.partition(b" ")
        if xxhash.xxh3_64_hexdigest(text).encode() == checksum:
            yield text
