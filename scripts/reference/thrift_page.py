"""`docs/reference/thrift.md`: the calls and messages, made from the IDL and its comments."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from idl import FILE, Block, Member, parse

_INTRODUCTION = """\
# Calls and messages

A manager, its workers and its clients call each other with these messages. `make docs` writes this
page from `idl/downpour.thrift`; give that file to a Thrift compiler to write a client in another
language. [The protocol](protocol.md) shows the bytes.

{overview}

{contents}

## Constants

{constants}
"""
_CHAPTERS = {
    "service": "Services",
    "struct": "Structs",
    "exception": "Exceptions",
    "enum": "Enumerations",
}
_FIELD = re.compile(r"(\d+): (?:(required|optional) )?(\S+(?:<.*?>)?) (\w+)(?: = (\S+))?")
_CALL = re.compile(r"\S+ (\w+)\(")


def page() -> str:
    """Return the page: services first, then the messages that they take and return."""
    idl = parse(FILE.read_text("utf-8"))
    chapters = {
        title: [block for block in idl.blocks if block.kind == kind]
        for kind, title in _CHAPTERS.items()
    }
    contents = "\n".join(f"- {title}: {_links(inside)}" for title, inside in chapters.items())
    constants = "\n".join(
        f"- `{one.words.removeprefix('const ')}`: {_line(one.comment)}" for one in idl.constants
    )
    parts = [
        _INTRODUCTION.format(overview=idl.overview, contents=contents, constants=constants),
    ]
    for title, inside in chapters.items():
        parts.append(f"## {title}\n")
        for block in inside:
            parts += _section(block, {one.name for one in idl.blocks})
    return "\n".join(parts).rstrip() + "\n"


def _links(blocks: Iterable[Block]) -> str:
    return ", ".join(f"[{block.name}](#{block.name.lower()})" for block in blocks)


def _section(block: Block, known: set[str]) -> Iterator[str]:
    yield f"### {block.name}\n"
    if block.comment:
        yield f"{block.comment}\n"
    if block.kind == "service":
        for call in block.members:
            yield from _call(call)
    elif block.kind == "enum":
        yield "| value | number | meaning |\n|---|---|---|"
        yield from (_value(member) for member in block.members)
        yield ""
    else:
        yield "| field | type | meaning |\n|---|---|---|"
        yield from (_field(member, known) for member in block.members)
        yield ""


def _call(call: Member) -> Iterator[str]:
    name = _CALL.match(call.words)
    if name is None:
        raise ValueError(f"no call: {call.words}")
    yield f"#### {name[1]}\n"
    yield f"```thrift\n{call.words}\n```\n"
    if call.comment:
        yield f"{call.comment}\n"


def _value(member: Member) -> str:
    name, _, number = member.words.partition(" = ")
    return f"| `{name}` | {number} | {_line(member.comment)} |"


def _field(member: Member, known: set[str]) -> str:
    field = _FIELD.fullmatch(member.words)
    if field is None:
        raise ValueError(f"no field: {member.words}")
    number, need, kind, name, default = field.groups()
    kinds = re.sub(r"\w+", lambda word: _linked(word[0], known), kind.replace("<", " of "))
    said = kinds.replace(">", "") + (f", {need}" if need == "optional" else "")
    said += f", default `{default}`" if default else ""
    return f"| {number}: `{name}` | {said} | {_line(member.comment)} |"


def _linked(word: str, known: set[str]) -> str:
    return f"[{word}](#{word.lower()})" if word in known else word


def _line(comment: str) -> str:
    return " ".join(comment.split()).replace("|", "\\|")
