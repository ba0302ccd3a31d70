"""`--on` and what belongs to it: where a command's workers run, the same for all commands."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Self

import typer

from downpour.base.errors import SpecError
from downpour.base.labels import checked_labels
from downpour.cli.options import number, whole_number
from downpour.cluster.launchers import LAUNCHERS, Launcher, LaunchPlan, kind_of
from downpour.cluster.launchers.launch_table import checked_table, owners
from downpour.cluster.launchers.needs import refuse_unmet
from downpour.core.spec import Spec
from downpour.files.spec_file import read_launch
from downpour.network.discovery.waiting import checked_seconds


@dataclass(frozen=True, slots=True)
class Launching:
    """What `--on` and its options ask for: a launcher, its name, and those of its options.

    `launcher` gives workers back that a policy asked for and that are idle for `idle_seconds`. All
    its workers have `labels`.
    """

    launcher: Launcher
    on: str
    options: Mapping[str, Any]
    idle_seconds: float = 0.0
    labels: tuple[str, ...] = ()

    def check(self, spec: Spec) -> None:
        """Refuse a spec that needs labels which no worker will have.

        Raises:
            SpecError: names the field.
        """
        refuse_unmet(spec, self.on, self.options, self.labels)

    def of(self, **changes: Any) -> Self:
        """Return a copy whose launcher changes these fields of every plan."""
        launcher = self.launcher
        return replace(self, launcher=lambda plan: launcher(replace(plan, **changes)), **changes)

    def words(self) -> list[str]:
        """Return the words of a command line that ask for the same."""
        words = [f"--on={self.on}", f"--idle-seconds={self.idle_seconds}"]
        words += [f"--label={label}" for label in self.labels]
        for name, value in self.options.items():
            flag = f"--{name.replace('_', '-')}"
            words += [f"{flag}={one}" for one in (value if isinstance(value, list) else [value])]
        return words

    def shown(self, plan: LaunchPlan) -> str:
        """Return as text what would be started for a plan.

        Raises:
            SpecError: this launcher has nothing to show.
        """
        kind = kind_of(self.on)
        if kind.planned is None:
            accepted = f"needs --on {' or '.join(_planning())}"
            raise SpecError("dry_run", value=True, accepted=accepted)
        return kind.planned(kind.given(self.options), plan)


def with_launcher(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command that takes `launching` the options that say where workers run.

    What is not given is taken from the table `[launch]` of its FILE, if it has one.
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
    """Make the launcher, or refuse options that are of another one.

    Those of the table are for its own launcher; another one that is given makes do without.
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
    """Return the table of a command's FILE; a manager elsewhere has workers of its own."""
    file = arguments.get("file")
    # A file that is missing is the command's to tell, after what else is wrong with its options.
    if file is None or arguments.get("manager") or not file.is_file():
        return {}
    return checked_table(read_launch(file), file, takes_workers="workers" in arguments)


def _options() -> dict[str, Any]:
    """Return an option for each of the launchers', under the heading of those that it is of."""
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
    """Return the launchers that can say what they would submit or run."""
    return [on for on in LAUNCHERS if kind_of(on).planned is not None]


_ON = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="|".join(LAUNCHERS),
        help=f"Where the workers run: {LAUNCHERS.described()}.",
        show_default="local",
    ),
]
_IDLE = Annotated[
    float | None,
    typer.Option(
        "--idle-seconds",
        metavar="X",
        parser=number,
        help="Give back a worker that a policy asked for when it has been idle for so long; 0: "
        "keep it. Workers of `--on local` of one run, and of inline, stay.",
        show_default="0",
    ),
]
_LABELS = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        metavar="KEY=VALUE",
        help="A label of all workers that are started; a spec's needs are about labels. "
        "Repeatable.",
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
