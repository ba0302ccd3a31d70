"""How a command gets its options: the shared ones, and parameters from the dataclasses it takes.

A command is a function whose arguments are dataclasses with options (`base/options.py`), or values
that a `CommandPart` makes. Typer sees a function that takes the single options. Each call of a
shared option makes a field of a dataclass.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass
from functools import partial
from inspect import Parameter, Signature
from math import inf
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import typer

from downpour.base.errors import SpecError
from downpour.base.options import OptionText, argument, flag, option, options_of
from downpour.base.values import DEFAULT_SHARED, PAGE_PORT
from downpour.host.paths import Credentials, checked_url, is_object_store, path_of
from downpour.learning.allowlist import allow_beside, allow_in

if TYPE_CHECKING:
    from collections.abc import Collection

    from downpour.core.spec import Spec


SHARED = Path(DEFAULT_SHARED)
RESULTS = Path("results")

shared = partial(
    option,
    value=SHARED,
    text="The shared directory, as this machine sees it.",
    metavar="DIR",
    variable="DOWNPOUR_SHARED",
)
shared_if_seen = partial(
    option,
    value=None,
    text="The cluster's shared directory or object store, which names the leading manager. "
    "With --manager, both must belong to one cluster.",
    metavar="DIR|URL",
    flag="--shared",
    variable="DOWNPOUR_SHARED",
    default="./shared_dir or, without one, localhost:9090, if no --manager is given",
    reads="location",
)
allow = partial(
    option,
    value=(),
    text="Let the spec use your own module, as DOWNPOUR_ALLOW does. Python also looks for it in "
    "the current folder and next to FILE. `run` and `splits` allow modules next to FILE without "
    "it. Repeatable.",
    metavar="MODULE",
    default=False,
)
resume = partial(
    option,
    value=None,
    text="Continue after the last round of an ended experiment, as a new experiment. --epochs and "
    "a schedule count its rounds, too. Unless an option changes the training, the model is the "
    "same as without the stop. The data must be the same.",
    metavar="ID",
    default=False,
)
tensorboard = partial(
    option,
    value=None,
    text="Also write event files for TensorBoard, in a folder for each run in DIR.",
    metavar="DIR",
    default="not written",
)
dashboard = partial(
    flag,
    text=f"Serve a live page on this machine's loopback, at port {PAGE_PORT} or, if that is taken, "
    "at any free one. It ends with the run or the cluster.",
)
dashboard_port = partial(
    option,
    value=None,
    text="Serve the page at this port; 0: any free one.",
    metavar="N",
    default="not served",
)
as_json = partial(option, value=False, text="Print JSON instead of tables.", flag="--json")
as_csv = partial(option, value=False, text="Print CSV, a row for each epoch.", flag="--csv")
experiment = partial(
    argument, text="An experiment's ID, or its beginning if no other begins so.", metavar="ID"
)


def allow_code(modules: Sequence[str], file: Path | None = None) -> None:
    """Allow a user's modules, and let Python find them in the current folder and next to a file."""
    allow_in([Path.cwd(), file.parent if file else None], modules)


def allow_own_code(spec: Spec, file: Path | None) -> None:
    """Allow the modules that a spec names if they are next to its file."""
    if file is not None:
        allow_beside(file.parent, spec.factories.values())


def refuse_unused(context: typer.Context, options: Collection[str], why: str) -> None:
    """Refuse these options of a command if they were given on the command line.

    An environment variable serves many commands, so it never conflicts.
    """
    for name, value in context.params.items():
        source = context.get_parameter_source(name)
        if name in options and source is not None and source.name == "COMMANDLINE":
            raise SpecError(name.replace("_", "-"), value, why)


def refuse_both(**flags: bool) -> None:
    """Refuse flags that exclude each other."""
    given = [f"--{name.replace('_', '-')}" for name, flag in flags.items() if flag]
    if len(given) > 1:
        raise SpecError("options", " ".join(given), "cannot be combined; give one of them")


Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CommandPart:
    """Parameters of a command, and the function that makes one value from all typed values."""

    parameters: Sequence[Parameter]
    make: Callable[[Values], Any]


def command(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the parameters of each dataclass, and each `CommandPart`, that it takes."""
    hints = get_type_hints(function, include_extras=True)
    parts = {name: _part(hint) for name, hint in hints.items() if name != "return"}

    @functools.wraps(function)
    def wrapped(**values: Any) -> Any:
        return function(**{name: part.make(values) for name, part in parts.items()})

    parameters = [parameter for part in parts.values() for parameter in part.parameters]
    wrapped.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {made.name: made.annotation for made in parameters}
    return wrapped


def _part(hint: Any) -> CommandPart:
    for part in getattr(hint, "__metadata__", ()):
        if isinstance(part, CommandPart):
            return part
    if hint is typer.Context:
        return CommandPart(
            [typed("context", hint, Parameter.empty)], lambda values: values["context"]
        )

    hints = get_type_hints(hint)
    parameters = [
        parameter(name, hints[name], declared.default, text)
        for name, (declared, text) in options_of(hint).items()
    ]

    def made(values: Values) -> Any:
        given = {name: values[name] for name in options_of(hint)}
        if hint is Credentials:
            files = {name: path for name, path in given.items() if path}
            return Credentials.from_environment().with_files(files)
        return hint(**{name: _value(hints[name], value) for name, value in given.items()})

    return CommandPart(parameters, made)


def _value(hint: Any, value: Any) -> Any:
    """Return a typed value as the dataclass has it."""
    if get_origin(hint) is tuple:
        return tuple(value or ())
    return str(value or "") if hint is str else value


def parameter(name: str, hint: Any, default: Any, text: OptionText) -> Parameter:
    """Return the parameter of an option, with its default."""
    kind, reading = _reading(name, hint, text)
    declare = typer.Argument if text.is_argument else typer.Option
    declared = declare(
        *([] if text.is_argument else text.flags(name)),
        metavar=text.metavar or None,
        envvar=text.variable or None,
        help=text.help,
        show_default=True if text.default is None else text.default,
        rich_help_panel=text.title,
        **reading,
    )
    if default is MISSING:
        return typed(name, Annotated[kind, declared], Parameter.empty)
    if default in (None, ()) or (default == "" and kind is not str):
        return typed(name, Annotated[kind | None, declared])
    return typed(name, Annotated[kind, declared], default)


def _reading(name: str, hint: Any, text: OptionText) -> tuple[Any, dict[str, Any]]:
    """Return the type that Typer sees, and how it reads a word of the command line."""
    kinds = set(get_args(hint)) - {NoneType} if isinstance(hint, UnionType) else {hint}
    if text.reads == "folder":
        return Path, {"exists": True, "file_okay": False}
    if text.reads == "location":
        return Path, {"parser": location}  # or a URL as text: Typer accepts no union
    if text.reads == "path" or Path in kinds:
        field = text.metavar if text.is_argument else text.key(name)
        # Typer's own parser calls stat on the path. If the file server doesn't answer, that call
        # blocks, and even Ctrl-C has no effect.
        return Path, {"parser": lambda word: path_of(field, word)}
    [kind] = kinds
    if get_origin(kind) is tuple:
        return list[str], {}
    return kind, {"parser": _PARSERS[kind]} if kind in _PARSERS else {}


def typed(name: str, annotation: Any, default: Any = None) -> Parameter:
    """Return a parameter that is given by its name."""
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def location(text: str) -> Path | str:
    """Read a shared directory's location: an object store's URL stays text, all else is a path."""
    return checked_url("shared", text) if is_object_store(text) else path_of("shared", text)


def _parser(kind: type, accepted: str) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return kind(text)
        except ValueError:
            raise typer.BadParameter(f"{text[:80]!r} is not {accepted}") from None

    return read


_PARSERS = {int: _parser(int, "a whole number"), float: _parser(float, "a number")}


NumberT = TypeVar("NumberT", int, float)


def checked_number(field: str, value: NumberT, least: float, most: float = inf) -> NumberT:
    """Return an option's number; raise SpecError unless it lies from `least` to `most`, finite."""
    if not least <= value <= most or value == inf:
        limit = f"from {least} to {most}" if most < inf else f"{least} or above"
        kind = "a number, " if isinstance(value, float) else ""
        raise SpecError(field, value, f"must be {kind}{limit}")
    return value


_AGE = re.compile(r"(\d{1,6})([smhd])")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def since_age(field: str, age: str) -> float:
    """Return the time of an age, in seconds since 1970; 0, before all times, for an empty age."""
    if not age:
        return 0.0
    match = _AGE.fullmatch(age)
    if match is None:
        accepted = "must be a number and s, m, h or d, as in 30s, 10m, 2h or 3d"
        raise SpecError(field, age, accepted)
    return time.time() - int(match[1]) * _UNIT_SECONDS[match[2]]
