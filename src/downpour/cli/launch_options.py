"""`--on` and what belongs to it: where a command's workers run, the same for all commands."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from downpour.cli import ray_options, slurm_options, ssh_options
from downpour.errors import SpecError
from downpour.launchers import LAUNCHERS, Launcher, LaunchPlan, launcher_of

_ENGINES = {"slurm": slurm_options, "ray": ray_options, "ssh": ssh_options}
"""The launchers that have options, each with a module of `OPTIONS` and `launcher`."""
_SHOWN = {"slurm": slurm_options.shown, "ssh": ssh_options.shown}
"""What returns as text what these would submit or run."""


@dataclass(frozen=True, slots=True)
class Launching:
    """What `--on` and its options ask for.

    `shown` returns what would be started for a plan as text, if that is asked for instead.
    """

    launcher: Launcher
    shown: Callable[[LaunchPlan], str] | None = None


def with_launcher(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command that takes `launching` the options that say where workers run."""

    @functools.wraps(command)
    def wrapped(**arguments: Any) -> Any:
        on, dry_run = arguments.pop("on"), arguments.pop("dry_run")
        given = {name: arguments.pop(name) for name in _owners()}
        return command(launching=_launching(on, given, dry_run=dry_run), **arguments)

    own = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(command, eval_str=True).parameters.items()
        if name != "launching"
    ]
    engines = [module.OPTIONS for module in _ENGINES.values()]
    options = {name: option for table in engines for name, option in table.items()}
    added = [_parameter("on", _ON, "local"), _parameter("dry_run", _DRY_RUN, default=False)]
    parameters = [*own, *added, *(_parameter(name, option) for name, option in options.items())]
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapped


def _launching(on: str, given: Mapping[str, Any], *, dry_run: bool) -> Launching:
    """Make the launcher, or refuse options that are of another one."""
    launcher = launcher_of(on)
    asked = {name: value for name, value in given.items() if value not in (None, [])}
    for name, value in asked.items():
        if on not in (owners := _owners()[name]):
            raise SpecError(name, value, f"needs --on {' or '.join(owners)}")
    if dry_run and on not in _SHOWN:
        raise SpecError("dry_run", value=True, accepted=f"needs --on {' or '.join(_SHOWN)}")
    shown = functools.partial(_SHOWN[on], asked) if dry_run else None
    return Launching(_ENGINES[on].launcher(asked) if on in _ENGINES else launcher, shown)


def _owners() -> dict[str, list[str]]:
    """Return for each option the launchers that it belongs to."""
    names = {name for engine in _ENGINES.values() for name in engine.OPTIONS}
    return {name: [on for on in _ENGINES if name in _ENGINES[on].OPTIONS] for name in names}


def _parameter(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


_ON = Annotated[
    str,
    typer.Option(
        "--on",
        metavar="|".join(LAUNCHERS),
        help="Where the workers run: as processes of this machine, as threads of this process, "
        "for a debugger, as jobs of Slurm, as actors of Ray, or on other machines by ssh.",
    ),
]
_DRY_RUN = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Print what would be submitted (slurm) or run on hosts (ssh), and start nothing.",
    ),
]
