"""`docs/reference/python.md`: the public API, made from its signatures and docstrings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import griffe

SOURCE = Path(__file__).parents[2] / "src"
MODULES = ("downpour", "downpour.data", "downpour.extending", "downpour.launchers")

_INTRODUCTION = """\
# The Python API

These are the names that you may import; all others can change without notice. `make docs` writes
this page from their docstrings. [The spec](spec.md) has the fields of `Spec`, `Outer` and `Inside`.

{contents}
"""
_FROM_SPEC_PAGE = {"Spec", "Outer", "Inside"}
_WIDTH = 88
_LANGUAGE = "py"
"""Of signatures, which do not run by themselves; blocks of "python" do, and are tested."""


def page() -> str:
    """Return the page: a chapter for each public module, and a section for each name."""
    loader = griffe.GriffeLoader(
        search_paths=[SOURCE], docstring_parser="google", allow_inspection=False
    )
    loader.load("downpour_lab")  # `compare_policies` is defined there
    package = loader.load("downpour")
    chapters = {name: _names(package, name) for name in MODULES}
    contents = "\n".join(
        f"- `{module}`: {', '.join(f'[{name}](#{name.lower()})' for name in names)}"
        for module, names in chapters.items()
    )
    parts = [_INTRODUCTION.format(contents=contents)]
    for module, names in chapters.items():
        parts.append(f"## `{module}`\n")
        for name, thing in names.items():
            parts += _section(name, thing)
    return "\n".join(parts).rstrip() + "\n"


def _names(package: Any, module: str) -> dict[str, Any]:
    """Return the public names of a module, sorted, without those that are only data."""
    found = package if module == "downpour" else package[module.partition(".")[2]]
    exports = sorted(str(name) for name in found.exports if not str(name).startswith("_"))
    return {name: _target(found[name]) for name in exports}


def _target(thing: Any) -> Any:
    return thing.final_target if thing.is_alias else thing


def _section(name: str, thing: Any) -> Iterator[str]:
    """Yield a section for a class, a function or another value."""
    yield f"### `{name}`\n"
    if thing.is_function:
        yield from _function(thing, name)
    elif thing.is_class:
        yield from _class(thing, name)
    else:
        if thing.is_attribute and thing.value is not None:
            yield f"```{_LANGUAGE}\n{name} = {thing.value}\n```\n"
        yield from _docstring(thing)


def _class(thing: Any, name: str) -> Iterator[str]:
    if name not in _FROM_SPEC_PAGE:
        made = thing.members.get("__init__")
        own = made is not None and "dataclass" not in thing.labels
        yield f"```{_LANGUAGE}\nclass {_signature(made, name) if own else name}\n```\n"
    yield from _docstring(thing)
    members = {
        own: _target(member) for own, member in thing.all_members.items() if not own.startswith("_")
    }
    values = {own: member for own, member in members.items() if member.is_attribute}
    parsed = thing.docstring.parsed if thing.docstring else ()
    told = any(section.kind.value == "attributes" for section in parsed)
    if values and not told and name not in _FROM_SPEC_PAGE:
        yield "**Attributes**\n"
        yield from (_attribute(own, member) for own, member in values.items())
        yield ""
    for own, member in members.items():
        if member.is_function:
            yield f"#### `{name}.{own}`\n"
            yield from _function(member, own)


def _attribute(name: str, member: Any) -> str:
    # A list, because tables of GitHub and of Python's Markdown read `|` in code differently.
    words = member.docstring.value.partition("\n\n")[0] if member.docstring else ""
    kind = f": {member.annotation}" if member.annotation else ""
    return f"- `{name}{kind}`" + (f": {_paragraph(words)}" if words else "")


def _function(function: Any, name: str) -> Iterator[str]:
    yield f"```{_LANGUAGE}\n{_signature(function, name)}\n```\n"
    yield from _docstring(function)


def _signature(function: Any, name: str) -> str:
    """Write a signature as it stands in the source, over several lines if it is long."""
    words = list(_parameters(function))
    made = function.name == "__init__"
    returned = f" -> {function.returns}" if function.returns and not made else ""
    line = f"{name}({', '.join(words)}){returned}"
    if len(line) <= _WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {word}," for word in words), f"){returned}"])


def _parameters(function: Any) -> Iterator[str]:
    starred = False
    for parameter in function.parameters:
        if parameter.name in {"self", "cls"}:
            continue
        kind = parameter.kind.value
        if kind == "keyword-only" and not starred:
            starred = True
            yield "*"
        starred = starred or kind == "variadic positional"
        stars = {"variadic positional": "*", "variadic keyword": "**"}.get(kind, "")
        annotation = f": {parameter.annotation}" if parameter.annotation else ""
        equals = " = " if annotation else "="
        default = "" if stars or parameter.default is None else f"{equals}{parameter.default}"
        yield f"{stars}{parameter.name}{annotation}{default}"


def _docstring(thing: Any) -> Iterator[str]:
    """Yield the paragraphs of a docstring, and a list for each of its sections."""
    for section in thing.docstring.parsed if thing.docstring else ():
        write = _SECTIONS.get(section.kind.value)
        if write is None:
            raise ValueError(f"{thing.path}: no way to write the section {section.kind.value}")
        yield write(section.value)


def _items(title: str) -> Callable[[Any], str]:
    def write(items: Any) -> str:
        lines = [f"- `{item.name}`: {_paragraph(item.description)}" for item in items]
        return "\n".join([f"**{title}**\n", *lines, ""])

    return write


def _raised(items: Any) -> str:
    lines = [f"- `{item.annotation}`: {_paragraph(item.description)}" for item in items]
    return "\n".join(["**Raises**\n", *lines, ""])


def _returned(items: Any) -> str:
    lines = [f"- {_paragraph(item.description)}" for item in items]
    return "\n".join(["**Returns**\n", *lines, ""])


def _paragraph(text: str) -> str:
    return " ".join(text.split())


_SECTIONS: dict[str, Callable[[Any], str]] = {
    "text": lambda text: f"{text}\n",
    "parameters": _items("Arguments"),
    "attributes": _items("Attributes"),
    "raises": _raised,
    "returns": _returned,
    "yields": _returned,
}
