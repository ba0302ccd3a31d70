"""`docs/reference/thrift.md`: the calls and messages, made from the IDL and its comments."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from idl import FILE, Block, Member, parse

_INTRODUCTION = """\
# Calls and messages

A manager, its workers and its clients call each other with these messages. `make docs` writes this
page from `idl/downpour.thrift`; give that file to a Thrift compiler to write a client in another
language. [The protocol](protocol.md) shows the bytes. `throws Refusal` is short for
`throws (1: Refusal refusal)`.

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
        lines = [_item(f"`{_refusing(call.words)}`", call) for call in block.members]
    elif block.kind == "enum":
        lines = [_item(f"`{one.words}`", one) for one in block.members]
    else:
        lines = [_item(_field(one, known), one) for one in block.members]
    yield "\n".join([*lines, ""])


def _item(what: str, member: Member) -> str:
    comment = _line(member.comment)
    return f"- {what}: {comment}" if comment else f"- {what}"


def _refusing(call: str) -> str:
    """Shorten the clause that most calls have."""
    return call.replace("throws (1: Refusal refusal)", "throws Refusal")


def _field(member: Member, known: set[str]) -> str:
    field = _FIELD.fullmatch(member.words)
    if field is None:
        raise ValueError(f"no field: {member.words}")
    number, need, kind, name, default = field.groups()
    kinds = re.sub(r"\w+", lambda word: _linked(word[0], known), kind.replace("<", " of "))
    said = kinds.replace(">", "") + (f", {need}" if need == "optional" else "")
    said += f", default `{default}`" if default else ""
    return f"{number} `{name}`, {said}"


def _linked(word: str, known: set[str]) -> str:
    return f"[{word}](#{word.lower()})" if word in known else word


def _line(comment: str) -> str:
    return " ".join(comment.split())
