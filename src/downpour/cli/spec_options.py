"""Every field of the spec as an option, so that `run` and `submit` take the same ones.

The options are made from the spec's own fields, with their descriptions as help. A value is read as
TOML would read it and judged by the spec alone, so a mistake gets the same line wherever it stands.
"""

from __future__ import annotations

import functools
import inspect
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from downpour.errors import SpecError
from downpour.runtime.spec_file import read_spec
from downpour.spec import Spec

_TABLES = {name for name, info in Spec.model_fields.items() if "dict" in str(info.annotation)}
_FLAGS = {name for name, info in Spec.model_fields.items() if info.annotation is bool}
_TEXTS = {
    name
    for name, info in Spec.model_fields.items()
    if info.annotation in {str, str | None} or "Literal" in str(info.annotation)
}


def with_spec(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command that takes `spec` a FILE argument and an option for each field."""

    @functools.wraps(command)
    def wrapped(**arguments: Any) -> Any:
        given = {name: arguments.pop(name) for name in Spec.model_fields}
        spec = _read(arguments.pop("file"), given)
        return command(spec=spec, **arguments)

    own = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(command, eval_str=True).parameters.items()
        if name != "spec"
    ]
    parameters = [_file(), *own, *map(_option, Spec.model_fields)]
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapped


def parse_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Turn what was typed into the spec's fields; those that were not given are left out."""
    return {name: _value(name, typed) for name, typed in given.items() if typed not in (None, [])}


def _read(file: Path | None, given: Mapping[str, Any]) -> Spec:
    fields = parse_fields(given)
    return Spec.make(fields) if file is None else read_spec(file, fields)


def _file() -> inspect.Parameter:
    argument = typer.Argument(help="A TOML file that says what to run.", show_default=False)
    return _parameter("file", Annotated[Path | None, argument])


def _option(name: str) -> inspect.Parameter:
    info = Spec.model_fields[name]
    flag = f"--{name.replace('_', '-')}"
    text = (info.description or "") + "."
    panel = "The experiment (each overrides the file)"
    if name in _FLAGS:
        option = typer.Option(f"{flag}/--no-{flag[2:]}", help=text, rich_help_panel=panel)
        return _parameter(name, Annotated[bool | None, option])
    if name in _TABLES:
        option = typer.Option(
            flag, help=text + " Repeatable.", metavar="KEY=VALUE", rich_help_panel=panel
        )
        return _parameter(name, Annotated[list[str] | None, option])
    option = typer.Option(
        flag, help=text, metavar=_metavar(name), show_default=False, rich_help_panel=panel
    )
    return _parameter(name, Annotated[str | None, option])


def _parameter(name: str, annotation: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=None, annotation=annotation)


def _metavar(name: str) -> str:
    annotation = str(Spec.model_fields[name].annotation)
    if name in _TEXTS:
        return "TEXT"
    return "N" if "int" in annotation else "X"


def _value(name: str, typed: Any) -> Any:
    if name in _FLAGS or (name in _TEXTS):
        return typed
    if name in _TABLES:
        return dict(_pair(name, item) for item in typed)
    return _as_toml(f"[{typed}]" if "," in typed else typed)


def _pair(name: str, item: str) -> tuple[str, Any]:
    key, equals, value = item.partition("=")
    if not equals or not key:
        raise SpecError(name, item, "must be KEY=VALUE")
    return key, _as_toml(value)


def _as_toml(text: str) -> Any:
    """Read a value as TOML does; what TOML cannot read is text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
