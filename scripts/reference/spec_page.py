"""`docs/reference/spec.md`: every field of a spec, made from the fields and their options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import tomli_w
from typer import Context

from downpour.cli.commands import build, words
from downpour.core.families import FAMILIES
from downpour.core.spec import TABLES, Spec
from downpour.core.spec_refusals import Fields, accepts

_INTRODUCTION = """\
# The spec

A spec says what an experiment trains, on which data, and how. Each field has a default or may be
absent, so a file holds only the fields that you change:

```toml
dataset = "digits"
shards = 4
epochs = 15

[outer]
optimizer = "nesterov"
momentum = 0.8
```

`downpour run FILE` reads it. Each field is an option of `run`, `submit` and `plan` as well. In
Python, `downpour.Spec(dataset="digits", shards=4)` makes the same value. A mistake costs one line,
which names the field and the values it accepts.

`make docs` writes this page from the fields.

{contents}
"""
_TYPES = {
    "array": "array",
    "boolean": "boolean",
    "integer": "integer",
    "number": "float",
    "object": "table",
    "string": "string",
}


def page() -> str:
    """Return the page: a chapter for each group of options, then one for each table."""
    chapters = _groups()
    titles = [*chapters, *(f"The table `{table}`" for table in TABLES)]
    contents = "\n".join(f"- [{title}](#{_slug(title)})" for title in titles)
    parts = [_INTRODUCTION.format(contents=contents)]
    for title, options in chapters.items():
        parts.append(f"## {title}\n")
        for field, option in options.items():
            parts += _entry(Spec, field, field, option)
    for table, fields in TABLES.items():
        parts.append(f"## The table `{table}`\n")
        for field in fields.model_fields:
            option = f"--{table} {field}=VALUE"
            parts += _entry(fields, field, f"{table}.{field}", option)
    return "\n".join(parts).rstrip() + "\n"


def _groups() -> dict[str, dict[str, str]]:
    """Return the options of `downpour run` that set fields, by the titles of its help."""
    group: Any = build()
    command = group.commands["run"]
    found: dict[str, dict[str, str]] = {}
    params = {param.name: param for param in command.get_params(Context(command))}
    for field in Spec.model_fields:
        option = params[field]
        found.setdefault(option.rich_help_panel, {})[field] = words(option)
    return found


def _entry(fields: type[Fields], field: str, name: str, option: str) -> Iterator[str]:
    description = str(fields.model_fields[field].description)
    yield f"### `{name}`\n"
    yield f"{_linked(description)}.\n"
    kind = _kind(_type(fields, field), _accepts(fields, field), description)
    default = _default(fields, field)
    yield f"{kind}{f'; default: {default}' if default else ''}; `{option}`\n"


def _kind(kind: str, accepted: str, description: str) -> str:
    """Say a field's type and the values that it accepts, unless the description has said them."""
    for number in ("a whole number ", "a number "):
        if accepted.startswith(number) and " or " not in kind:
            return f"{kind.capitalize()} {accepted.removeprefix(number)}"
    told = accepted in {"text", "a table", "true or false"} or accepted in description
    return kind.capitalize() if told else f"{kind.capitalize()}: {accepted}"


def _linked(sentence: str) -> str:
    """Turn the path of a page into a link to it."""
    return re.sub(r"docs/([\w/-]+/)([\w-]+)\.md", r"[\2](../\1\2.md)", sentence)


def _type(fields: type[Fields], field: str) -> str:
    """Name the type as TOML does."""
    schema = _schema(fields)["properties"][field]
    kinds = [kind for kind in schema.get("anyOf", [schema]) if kind.get("type") != "null"]
    names = [_TYPES[kind.get("type", "object")] for kind in kinds]
    return " or ".join(dict.fromkeys(names))


@cache
def _schema(fields: type[Fields]) -> dict[str, Any]:
    return fields.model_json_schema()


def _default(fields: type[Fields], field: str) -> str:
    """Write a default as it would stand in a file."""
    value = fields.model_fields[field].get_default(call_default_factory=True)
    if value is None:
        return ""
    if isinstance(value, Fields):
        return f"the defaults of [its table](#{_slug(f'The table {field}')})"
    return f"`{tomli_w.dumps({'x': value}).partition(' = ')[2].strip() or '{}'}`"


def _accepts(fields: type[Fields], field: str) -> str:
    if fields is Spec and field in FAMILIES:
        return FAMILIES[field].described()
    return accepts(fields, field)


def _slug(title: str) -> str:
    return "".join(c for c in title.lower() if c.isalnum() or c in " -_").replace(" ", "-")
