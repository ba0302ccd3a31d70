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

If an argument or a field is invalid, or names something that does not exist, a call raises
`SpecError`. Its message says what is wrong and which values are accepted. `MissingPackage` says
which extra to install. These and all errors below are `DownpourError`s.

{contents}
"""
_FROM_SPEC_PAGE = {"Spec", "Outer", "Inside"}
_FROM_CLI_PAGE = {"ComposeOptions", "RayOptions", "SlurmOptions", "SshOptions"}
_INTERNAL = {
    *("Client.disturbed", "Credentials.to_environment", "Credentials.with_files"),
    *("Blocks.reach", "Inside.make", "Outer.make", "Result.from_lines", "Result.from_record"),
    *("LauncherKind.given", "LauncherKind.launcher", "LauncherKind.texts", "SlurmOptions.lines"),
    "Statistic.__call__",
}
"""Methods that only Downpour itself calls."""
_CLUSTERS = {"InlineCluster", "LocalCluster", "PlacedCluster"}
"""Classes whose members are those of `RunningCluster`."""
_EXPLAINED = {"SpecError", "MissingPackage"}  # in the introduction
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
        yield f"```{_LANGUAGE}\n{_signature(thing, name)}\n```\n"
        yield from _docstring(thing)
    elif thing.is_class:
        yield from _class(thing, name)
    else:
        if thing.is_attribute and thing.value is not None:
            yield f"```{_LANGUAGE}\n{name} = {thing.value}\n```\n"
        yield from _docstring(thing)


def _class(thing: Any, name: str) -> Iterator[str]:
    made = thing.members.get("__init__")
    if made is not None and "dataclass" not in thing.labels and name not in _FROM_SPEC_PAGE:
        yield f"```{_LANGUAGE}\nclass {_signature(made, name)}\n```\n"
    if name in _FROM_CLI_PAGE:
        chapter = name.removesuffix("Options").lower()
        yield f"{_words(thing)} [The command's options](cli.md#{chapter}) explain the fields.\n"
    elif name in _FROM_SPEC_PAGE:
        yield f"{_words(thing)}\n"
    else:
        yield from _docstring(thing)
    if name in _CLUSTERS:
        yield "Its members are those of [RunningCluster](#runningcluster).\n"
        return
    members = {
        own: _target(member)
        for own, member in thing.all_members.items()
        if not own.startswith("_") or own == "__call__"
    }
    values = {own: member for own, member in members.items() if member.is_attribute}
    parsed = thing.docstring.parsed if thing.docstring else ()
    told = any(section.kind.value in {"attributes", "parameters"} for section in parsed)
    if values and not told and name not in _FROM_SPEC_PAGE:
        yield from _attributes(values)
    methods = {own: member for own, member in members.items() if member.is_function}
    shown = [_method(own, one) for own, one in methods.items() if f"{name}.{own}" not in _INTERNAL]
    if shown:
        yield "\n".join(["**Methods**\n", *shown, ""])


def _attributes(values: dict[str, Any]) -> Iterator[str]:
    """Yield the attributes: in a line those that need no words, then a list of the others."""
    typed = {name: _typed(name, member) for name, member in values.items()}
    told = {name: _words(values[name]) for name in values}
    plain = [f"`{typed[name]}`" for name in values if not told[name]]
    if plain:
        yield f"Attributes: {', '.join(plain)}.\n"
    # A list, because tables of GitHub and of Python's Markdown read `|` in code differently.
    listed = [f"- `{typed[name]}`: {told[name]}" for name in values if told[name]]
    if listed:
        yield "\n".join([*listed, ""])


def _typed(name: str, member: Any) -> str:
    return f"{name}: {member.annotation}" if member.annotation else name


def _words(member: Any) -> str:
    text = member.docstring.value.partition("\n\n")[0] if member.docstring else ""
    return _paragraph(text)


def _method(name: str, function: Any) -> str:
    """Write a method in one item of a list."""
    signature = _paragraph(_signature(function, name)).replace("( ", "(").replace(", )", ")")
    parts = function.docstring.parsed if function.docstring else ()
    text = " ".join(_paragraph(part.value) for part in parts if part.kind.value == "text")
    described = [
        f"`{item.name}`: {_paragraph(item.description)}"
        for part in parts
        for item in (part.value if part.kind.value == "parameters" else ())
    ]
    raised = [
        f"Raises `{item.annotation}`: {_paragraph(item.description)}"
        for part in parts
        for item in (part.value if part.kind.value == "raises" else ())
        if str(item.annotation) not in _EXPLAINED
    ]
    return f"- `{signature}`: {' '.join([text, *described, *raised])}"


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
        if written := write(section.value):
            yield written


def _items(title: str) -> Callable[[Any], str]:
    def write(items: Any) -> str:
        lines = [f"- `{item.name}`: {_paragraph(item.description)}" for item in items]
        return "\n".join([f"**{title}**\n", *lines, ""])

    return write


def _raised(items: Any) -> str:
    others = [item for item in items if str(item.annotation) not in _EXPLAINED]
    lines = [f"- `{item.annotation}`: {_paragraph(item.description)}" for item in others]
    return "\n".join(["**Raises**\n", *lines, ""]) if lines else ""


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
