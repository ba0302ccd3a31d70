"""Reads `idl/downpour.thrift`: its blocks, their members, and the comments above both.

Parsers of Thrift drop comments, which are what the page is about. This one reads the form in which
we write the file: a member on a line, `throws` on the next one if need be, and a comment above.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).parents[2] / "idl" / "downpour.thrift"
_OPENING = re.compile(r"(struct|enum|exception|service) (\w+) \{")


@dataclass(frozen=True)
class Member:
    """A field, a value or a call, with the comment above it."""

    words: str
    comment: str


@dataclass(frozen=True)
class Block:
    """A struct, an enumeration, an exception or a service, with the comment above it."""

    kind: str
    name: str
    comment: str
    members: tuple[Member, ...]


@dataclass(frozen=True)
class Idl:
    """The file: its first comment, its constants and its blocks."""

    overview: str
    constants: tuple[Member, ...]
    blocks: tuple[Block, ...]


def parse(text: str) -> Idl:
    """Parse the file.

    Raises:
        ValueError: a block has no end.
    """
    statements = list(_statements(text))
    overview = statements[0].comment
    constants = tuple(one for one in statements if one.words.startswith("const "))
    return Idl(overview, constants, tuple(_blocks(iter(statements))))


def _blocks(statements: Iterator[Member]) -> Iterator[Block]:
    for statement in statements:
        if opening := _OPENING.fullmatch(statement.words):
            yield Block(opening[1], opening[2], statement.comment, tuple(_inside(statements)))


def _inside(statements: Iterator[Member]) -> Iterator[Member]:
    for statement in statements:
        if statement.words.startswith("}"):
            return
        yield statement
    raise ValueError("a block has no end")


def _statements(text: str) -> Iterator[Member]:
    """Yield each line that is no comment, with the comment above it and its continuation."""
    comment = ""
    lines = re.sub(r"\n\s+throws ", " throws ", text)
    for part in re.split(r"(/\*\*.*?\*/)", lines, flags=re.DOTALL):
        if part.startswith("/**"):
            comment = _plain(part)
            continue
        for line in filter(None, map(str.strip, part.splitlines())):
            yield Member(line, comment)
            comment = ""


def _plain(comment: str) -> str:
    """Take the stars from a comment; an empty line stays one."""
    lines = comment.removeprefix("/**").removesuffix("*/").splitlines()
    return "\n".join(re.sub(r"^\s*\* ?", "", line).strip() for line in lines).strip()
