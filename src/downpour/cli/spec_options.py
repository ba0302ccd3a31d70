"""Every field of the spec as an option, so that `run` and `submit` take the same options.

This module makes the options from the spec's fields, and their help from the fields' descriptions.
It reads a value as TOML, and only the spec checks it. So a mistake gets the same message in a file
and in an option.
"""

from __future__ import annotations

import functools
import inspect
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from downpour.base.devices import NAMES
from downpour.base.errors import SpecError
from downpour.cli.options import SHARED, path_option
from downpour.core.families import FAMILIES
from downpour.core.spec import TABLES, Spec
from downpour.files.spec_file import read_spec
from downpour.host.paths import path_of

# A group begins with the field named here and ends before the next group.
_GROUPS = {
    "name": "The experiment",
    "dataset": "Data",
    "model": "Model",
    "mode": "Rounds and shards",
    "optimizer": "Optimizer",
    "threads": "Numerics",
}
# The form of a value, if its type does not show it.
_METAVARS = {
    "name": "NAME",
    "dataset": "NAME",
    "data_path": "PATH",
    "model": "NAME",
    "model_compression": "CODEC",
    "init_from": "ID|ID@best|FILE",
    "init_checksum": "DIGITS",
    "code_bundle": "DIGITS",
    "data_key": "KEY",
    "keep_best": "loss|METRIC",
    "meet": "N|auto",
    "needs": "LABEL,LABEL",
    "prefers": "LABEL,LABEL",
    "outer_checksum": "DIGITS",
    "states_checksum": "DIGITS",
    "best_checksum": "DIGITS",
    "policy": "NAME",
    "split": "random|class|equal|dirichlet(ALPHA)",
    "betas": "X,X",
    "device": NAMES,
}

_LISTS = {"needs", "prefers"}
_TABLES = {
    name
    for name, info in Spec.model_fields.items()
    if "dict" in str(info.annotation) or name in TABLES
}
_DIGITS_MAX = 1000

_FLAGS = {
    name for name, info in Spec.model_fields.items() if info.annotation in {bool, bool | None}
}
_TEXTS = {
    name
    for name, info in Spec.model_fields.items()
    if info.annotation in {str, str | None} or get_origin(info.annotation) is Literal
}


def with_spec(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command that takes `spec` a FILE argument and an option for each field.

    The command also gets the path if it takes `spec_file`. If it takes `resume`, it has an option
    of that name.
    """
    wanted = inspect.signature(command, eval_str=True).parameters

    @functools.wraps(command)
    def wrapped(**arguments: Any) -> Any:
        given = {name: arguments.pop(name) for name in Spec.model_fields}
        file = arguments.pop("file")
        if "spec_file" in wanted:
            arguments["spec_file"] = file
        resume = arguments.get("resume")
        if resume is not None:
            spec = _resumed(resume, arguments["shared"] or SHARED, file, given)
        else:
            spec = _read(file, given)
        return command(spec=spec, **arguments)

    own = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in wanted.items()
        if name not in {"spec", "spec_file"}
    ]
    parameters = [_file(), *own, *_options()]
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapped


def parse_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Turn options into the spec's fields; leave out options that the user did not give."""
    return {name: _value(name, typed) for name, typed in given.items() if typed not in (None, [])}


def _read(file: Path | None, given: Mapping[str, Any]) -> Spec:
    fields = parse_fields(given)
    return Spec.make(fields) if file is None else read_spec(file, fields)


def _resumed(
    experiment: str, shared: Path | str, file: Path | None, given: Mapping[str, Any]
) -> Spec:
    from downpour.experiments.trained_model.locating import resumed_spec

    if file is not None:
        accepted = "continues with its own spec, so leave out FILE; options may change it"
        raise SpecError("resume", experiment, accepted)
    return resumed_spec(experiment, path_of("shared", shared), parse_fields(given))


def _file() -> inspect.Parameter:
    argument = typer.Argument(
        metavar="FILE",
        parser=path_option("FILE"),
        help="A TOML file with the spec.",
        show_default=False,
    )
    return _parameter("file", Annotated[Path | None, argument])


def _options() -> Iterator[inspect.Parameter]:
    group = ""
    for name in Spec.model_fields:
        group = _GROUPS.get(name, group)
        yield _option(name, group)


def _option(name: str, group: str) -> inspect.Parameter:
    flag = f"--{name.replace('_', '-')}"
    kind: Any = str
    if name in _FLAGS:
        flag, kind = f"{flag}/--no-{flag[2:]}", bool
    elif name in _TABLES:
        kind = list[str]
    option = typer.Option(
        flag,
        help=_help(name),
        metavar=_metavar(name),
        show_default=_default(name),
        rich_help_panel=group,
    )
    return _parameter(name, Annotated[kind | None, option])


def _parameter(name: str, annotation: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=None, annotation=annotation)


def _help(name: str) -> str:
    sentence = f"{Spec.model_fields[name].description}."
    if name in FAMILIES:
        sentence = f"{sentence[:-1]}: {FAMILIES[name].described()}."
    return f"{sentence} Repeatable." if name in _TABLES else sentence


def _metavar(name: str) -> str | None:
    """Return the form of a field's value; its choices if it has any."""
    annotation = Spec.model_fields[name].annotation
    if name in FAMILIES and name not in _METAVARS:
        return "|".join(FAMILIES[name].accepted)
    if name in _FLAGS or name in _METAVARS:
        return _METAVARS.get(name)
    if name in _TABLES:
        return "KEY=VALUE"
    if get_origin(annotation) is Literal:
        return "|".join(get_args(annotation))
    return "N" if "int" in str(annotation) else "X"


def _default(name: str) -> str | bool:
    """Format a field's default as users type it; False if it has none."""
    value = Spec.model_fields[name].get_default(call_default_factory=True)
    if name == "shards":
        return "as many as workers"
    if name in _FLAGS:
        return False if value is None else "on" if value else "off"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return (
        str(value)
        if value not in (None, "", {}, *(table() for table in TABLES.values()))
        else False
    )


def _value(name: str, typed: Any) -> Any:
    if name in _FLAGS or (name in _TEXTS):
        return typed
    if name in _TABLES:
        return dict(_pair(name, item) for item in typed)
    if name in _LISTS:
        return [one for one in typed.split(",") if one]
    return _as_toml(f"[{typed}]" if "," in typed else typed)


def _pair(name: str, item: str) -> tuple[str, Any]:
    key, equals, value = item.partition("=")
    if not equals or not key:
        raise SpecError(name, item, "must be KEY=VALUE")
    if len(value) > _DIGITS_MAX and value.isdecimal():  # TOML's reader takes it for a text
        raise SpecError(f"{name}.{key}", value, f"must have at most {_DIGITS_MAX} digits")
    return key, _as_toml(value)


def _as_toml(text: str) -> Any:
    """Read a value as TOML, or as plain text if it is not TOML."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text
