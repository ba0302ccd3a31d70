"""`--on` and its options, the same for all commands: they choose where the workers run."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Self

import typer

from downpour.base.errors import SpecError
from downpour.base.values import checked_labels
from downpour.cli.options import number, whole_number
from downpour.cluster.launchers import LAUNCHERS, Launcher, LaunchPlan, kind_of
from downpour.cluster.launchers.launch_table import checked_table, owners, refuse_unmet
from downpour.core.spec import Spec
from downpour.files.spec_file import read_launch
from downpour.learning.allowlist import VARIABLE
from downpour.network.discovery.waiting import checked_seconds


@dataclass(frozen=True, slots=True)
class Launching:
    """The launcher that `--on` and its options ask for, and their names.

    `launcher` gives back workers that a policy asked for once they are idle for `idle_seconds`. All
    its workers have `labels`.
    """

    launcher: Launcher
    on: str
    options: Mapping[str, Any]
    idle_seconds: float = 0.0
    labels: tuple[str, ...] = ()

    def check(self, spec: Spec) -> None:
        """Refuse a spec that needs labels that no worker will have."""
        refuse_unmet(spec, self.on, self.options, self.labels)

    def of(self, **changes: Any) -> Self:
        """Return a copy whose launcher sets these fields in every plan."""
        launcher = self.launcher
        return replace(self, launcher=lambda plan: launcher(replace(plan, **changes)), **changes)

    def words(self) -> list[str]:
        """Return command-line words that ask for the same launcher."""
        words = [f"--on={self.on}", f"--idle-seconds={self.idle_seconds}"]
        words += [f"--label={label}" for label in self.labels]
        for name, value in self.options.items():
            flag = f"--{name.replace('_', '-')}"
            words += [f"{flag}={one}" for one in (value if isinstance(value, list) else [value])]
        return words

    def shown(self, plan: LaunchPlan) -> str:
        """Return a description of the processes that a plan would start."""
        kind = kind_of(self.on)
        if kind.planned is None:
            accepted = f"needs --on {' or '.join(_planning())}"
            raise SpecError("dry_run", value=True, accepted=accepted)
        return kind.planned(kind.given(self.options), plan)


def with_launcher(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command that takes `launching` the options that say where workers run.

    The table `[launch]` of the command's FILE supplies the options that the user leaves out.
    """

    @functools.wraps(command)
    def wrapped(**arguments: Any) -> Any:
        on = arguments.pop("on")
        given = {name: arguments.pop(name) for name in owners()}
        table = _table(arguments)
        if arguments.get("workers", 0) is None:
            arguments["workers"] = table.get("workers")
        idle = arguments.pop("idle_seconds")
        idle_seconds = table.get("idle_seconds", 0.0) if idle is None else idle
        labels = checked_labels(arguments.pop("label") or table.get("label", ()))
        launching = _launching(on, given, table)
        idle_seconds = checked_seconds("idle_seconds", idle_seconds)
        launching = launching.of(idle_seconds=idle_seconds, labels=labels)
        return command(launching=launching, **arguments)

    own = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(command, eval_str=True).parameters.items()
        if name != "launching"
    ]
    parameters = [
        *own,
        _parameter("on", _ON),
        _parameter("idle_seconds", _IDLE),
        _parameter("label", _LABELS),
        *(_parameter(name, option) for name, option in _options().items()),
    ]
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapped


def _launching(on: str | None, given: Mapping[str, Any], table: Mapping[str, Any]) -> Launching:
    """Make the launcher, or refuse options that belong to another one.

    The table's options belong to its launcher. If the user names another one, we ignore them.
    """
    named = on or table.get("on", "local")
    kind = kind_of(named)
    of_table = {name: value for name, value in table.items() if name in owners()}
    if on is not None:
        of_table = {name: value for name, value in of_table.items() if on in owners()[name]}
    asked = of_table | {name: value for name, value in given.items() if value not in (None, [])}
    for name, value in asked.items():
        if named not in (its := owners()[name]):
            raise SpecError(name, value, f"needs --on {' or '.join(its)}")
    return Launching(kind.launcher(asked), named, asked)


def _table(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table of a command's FILE; a manager elsewhere has its own workers."""
    file = arguments.get("file")
    # The command itself reports a missing file, after other mistakes in its options.
    if file is None or arguments.get("manager") or not file.is_file():
        return {}
    return checked_table(read_launch(file), file, takes_workers="workers" in arguments)


def _options() -> dict[str, Any]:
    """Return the launchers' options, each under a heading that names its launchers."""
    known: dict[str, Any] = {}
    for on in LAUNCHERS:
        for name, (field, text) in kind_of(on).texts().items():
            titles = " and ".join(kind_of(owner).title for owner in owners()[name])
            kind = type(field.default)
            plain = str(field.default).removesuffix(".0")
            option = typer.Option(
                f"--{name.replace('_', '-')}",
                metavar=text.metavar,
                parser={float: number, int: whole_number}.get(kind),
                help=text.help,
                show_default=plain if text.default is None else text.default,
                rich_help_panel=titles,
            )
            given: Any = list[str] if kind is tuple else kind
            known.setdefault(name, Annotated[given | None, option])
    return known


def _parameter(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _planning() -> list[str]:
    """Return the launchers that can show what they would submit or run."""
    return [on for on in LAUNCHERS if kind_of(on).planned is not None]


_ON = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="|".join(LAUNCHERS),
        help=f"The place to run the workers: {LAUNCHERS.described()}.",
        show_default="local",
    ),
]
_IDLE = Annotated[
    float | None,
    typer.Option(
        "--idle-seconds",
        metavar="X",
        parser=number,
        help="Give back a worker that a policy asked for after it has been idle for this "
        "long; 0: keep it. Inline workers, and those of one run with `--on local`, stay.",
        show_default="0",
    ),
]
_LABELS = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        metavar="KEY=VALUE",
        help="A label for all workers that the command starts; specs and shards can require "
        "labels. Repeatable.",
        show_default=False,
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help=f"Print what would be submitted or run, and start nothing ({', '.join(_planning())}).",
    ),
]


_TYPED = "COMMANDLINE"


def refuse_unused(context: typer.Context, options: Collection[str], why: str) -> None:
    """Refuse these options of a command if they were given on the command line.

    An environment variable serves many commands, so it never conflicts.

    Raises:
        SpecError: names the option, its value and the reason why it would have no effect.
    """
    for name, value in context.params.items():
        source = context.get_parameter_source(name)
        if name in options and source is not None and source.name == _TYPED:
            raise SpecError(name.replace("_", "-"), value, why)


def refuse_own_data(context: typer.Context, manager: str) -> None:
    """Refuse this machine's folders if a manager elsewhere trains: it has its own folders."""
    if manager:
        refuse_unused(
            context,
            {"shared", "data_dir"},
            "cannot go with --manager: that manager has its own",
        )
        accepted = f"is for runs here; start manager and workers with {VARIABLE} instead"
        refuse_unused(context, {"allow"}, accepted)
        accepted = "cannot go with --manager: that manager has workers"
        refuse_unused(context, {"on", *owners()}, accepted)


def refuse_both(**flags: bool) -> None:
    """Refuse flags that exclude each other."""
    given = [f"--{name.replace('_', '-')}" for name, flag in flags.items() if flag]
    if len(given) > 1:
        raise SpecError("options", " ".join(given), "cannot be combined; give one of them")
