"""Every field of the spec as an option, so that `run` and `submit` take the same options.

This module makes the options from the spec's fields, and their help from the fields' descriptions.
It reads a value as TOML, and only the spec checks it. So a mistake gets the same message in a file
and in an option.
"""

import inspect
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from downpour.base.errors import SpecError
from downpour.base.names import DEVICE_NAMES
from downpour.base.options import OptionText
from downpour.cli.common import SHARED, CommandPart, Values, parameter
from downpour.core.families import FAMILIES
from downpour.core.spec import TABLES, Spec
from downpour.files.spec_file import read_spec, specs_in
from downpour.host.paths import path_of

# A title begins with the field named here and ends before the next title.
_TITLES = {
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
    "betas": "X,X",
    "device": DEVICE_NAMES,
    "warmup": "SHARE|STEPS",
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


@dataclass(frozen=True, slots=True)
class SpecRequest:
    """The spec that a user asks for, its file if there is one, and a remark on the choice."""

    spec: Spec
    file: Path | None = None
    remark: str = ""


def read_spec_of(values: Values) -> SpecRequest:
    """Read the spec from FILE, from the experiment to resume, and from options."""
    file, resume = values["file"], values.get("resume")
    fields = parse_fields({name: values[name] for name in Spec.model_fields})
    if resume is not None:
        from downpour.experiments.locating import resumed_spec

        if file is not None:
            accepted = "continues with its own spec, so leave out FILE; options may change it"
            raise SpecError("resume", resume, accepted)
        shared = path_of("shared", values["shared"] or SHARED)
        return SpecRequest(resumed_spec(resume, shared, fields))
    return SpecRequest(Spec.make(fields) if file is None else read_spec(file, fields), file)


_SAYS_WHAT = ("file", "resume", "task", "dataset", "model")
"""Arguments that say what to train, so that we look for no file."""


def find_spec(values: Values) -> SpecRequest:
    """Read the spec; if nothing says what to train, from the only one in the current folder."""
    remark = ""
    if not any(values.get(name) for name in _SAYS_WHAT):
        files = specs_in(Path.cwd())
        if len(files) > 1:
            _refuse_options(files, values)
            names = ", ".join(file.name for file in files)
            raise SpecError("FILE", None, f"name one of the specs in this folder: {names}")
        for file in files:
            values["file"] = file
            remark = f"no FILE was named, so this is {file.name}"
    return replace(read_spec_of(values), remark=remark)


def _refuse_options(files: Sequence[Path], values: Values) -> None:
    """Refuse options that are wrong with each of these files."""
    from downpour.cluster.launchers import kind_of
    from downpour.experiments.surroundings import workers_for

    kind_of(values["on"] or "local")
    workers_for(Spec(), values["workers"])
    fields = parse_fields({name: values[name] for name in Spec.model_fields})
    errors: dict[str, SpecError] = {}
    for file in files:
        try:
            read_spec(file, fields)
        except SpecError as error:
            errors.setdefault(str(error), error)
        else:
            return
    if len(errors) == 1:
        raise errors.popitem()[1]


def _parameters() -> Iterator[inspect.Parameter]:
    text = OptionText("A TOML file with the spec.", "FILE", default=False, is_argument=True)
    yield parameter("file", Path, None, text)
    title = ""
    for name in Spec.model_fields:
        title = _TITLES.get(name, title)
        flag = f"--{name.replace('_', '-')}"
        flag += f"/--no-{flag[2:]}" if name in _FLAGS else ""
        hint = bool if name in _FLAGS else tuple[str, ...] if name in _TABLES else str
        metavar = _metavar(name) or ""
        text = OptionText(_help(name), metavar, _default(name), flag=flag, title=title)
        yield parameter(name, hint, None, text)


def parse_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Turn options into the spec's fields; leave out options that the user did not give."""
    return {name: _value(name, typed) for name, typed in given.items() if typed not in (None, [])}


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
    empty: tuple[Any, ...] = (None, "", {}, *(table() for table in TABLES.values()))
    return False if value in empty else str(value)


def _value(name: str, typed: Any) -> Any:
    if name in _FLAGS or (name in _TEXTS):
        return typed
    if name in _TABLES:
        return dict(_pair(name, item) for item in typed)
    if name in _LISTS:
        return [label for label in typed.split(",") if label]
    return _as_toml(f"[{typed}]" if "," in typed else typed)


def _pair(name: str, item: str) -> tuple[str, Any]:
    key, equals, value = item.partition("=")
    if not equals or not key or item.startswith("{"):
        raise SpecError(name, item, "must be KEY=VALUE without braces, once for each key")
    if len(value) > _DIGITS_MAX and value.isdecimal():  # TOML's reader takes it for a text
        raise SpecError(f"{name}.{key}", value, f"must have at most {_DIGITS_MAX} digits")
    return key, _as_toml(value)


def _as_toml(text: str) -> Any:
    """Read a value as TOML, or as plain text if it is not TOML."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


AskedSpec = Annotated[SpecRequest, CommandPart([*_parameters()], read_spec_of)]
"""The parameter of a command that takes FILE and an option for each field of the spec."""
FoundSpec = Annotated[SpecRequest, CommandPart([*_parameters()], find_spec)]
"""The same for a command that may find FILE in the current folder."""
