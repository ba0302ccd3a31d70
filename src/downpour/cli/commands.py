"""The commands by name, and their help: ours, then those of installed packages.

We import only the command that the user named. Importing all takes 0.4 s of processor time, which
every health check, manager and worker would pay at its start.

The help is plain text in groups, each option with its value and default. If a command has many
options, `--help` shows those in `FIRST`, and `--help-all` shows all. The same functions write
`docs/reference/cli.md`, so it cannot differ from the screen. Parameters have the type `Any` because
Typer's classes for them are private.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command

from downpour.base import VERSION
from downpour.base.errors import SpecError
from downpour.base.names import Family, Member, meant

if TYPE_CHECKING:  # for the rules of layers and tests, which read imports
    from downpour.cli import (  # noqa: F401
        asking,
        clients,
        runs,
        serving,
        showing,
        starting,
        trained,
        up_and_down,
        upkeep,
    )


_TRAINING = ("--dataset", "--model", "--epochs", "--batch-size", "--learning-rate", "--optimizer")
_SHARDS = ("--shards", "--split", "--mode", "--policy", "--device", "--name", "--seed")
_STUDY = ("--out", "--on", "--manager", "--shared", "--data-dir", "--detach", "--status", "--json")

# Commands that are missing here show all their options with `--help`.
FIRST: dict[str, tuple[str, ...]] = {
    "run": (*_TRAINING, "--workers", *_SHARDS, *("--on", "--shared", "--resume", "--dashboard")),
    "submit": ("--manager", "--shared", "--watch", "--priority", *_TRAINING, *_SHARDS, "--resume"),
    "plan": (*_TRAINING, "--workers", *_SHARDS, *("--on", "--shared", "--json")),
    "grid": _STUDY,
    "tune": _STUDY,
    "compare-policies": (
        *("--policies", "--scenario", "--jobs", "--rounds", "--standbys", "--figure", "--spec"),
        *("--shared", "--json"),
    ),
    "simulate": (
        *("--seeds", "--seed", "--faults", "--story", "--keep", "--json"),
        *("--workers", "--shards", "--rounds", "--mode", "--policy", "--deaths-an-hour"),
    ),
    "up": (
        *("--workers", "--on", "--hosts", "--device", "--shared", "--data-dir", "--host", "--port"),
        *("--dashboard", "--service"),
    ),
    "manager": (
        *("--shared", "--host", "--port", "--data-dir", "--successor", "--dashboard"),
        *("--make-token", "--token-file", "--log", "--verbose"),
    ),
    "worker": (
        *("--manager", "--shared", "--name", "--device", "--loaders", "--host", "--port"),
        *("--label", "--accept-code", "--token-file", "--log", "--verbose"),
    ),
}
"""By command, most needed first."""


_OF_OTHERS = {"--data-dir": "; the manager has the data, so give it to `up` or `manager`"}
"""What to do with an option that a user expects at a command that lacks it."""


_COLUMN_MAX = 27
_ALL = "downpour.help_all"


class Group(TyperGroup):
    """A group of commands, listed under titles; without a command it shows its help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words of the command line."""
        return super().parse_args(ctx, args or ["--help"])

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a list of commands for each title; all have the same width."""
        column = max(map(len, self.commands))
        limit = formatter.width - 6 - column
        for title, commands in titled_commands(self, ctx):
            with formatter.section(title):
                rows = [(one.name.ljust(column), one.get_short_help_str(limit)) for one in commands]
                formatter.write_dl(rows)


class Command(TyperCommand):
    """A command whose help lists options by group, or the first options only."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words of the command line."""
        try:
            return super().parse_args(ctx, [*args])
        except TyperException as error:
            typed = getattr(error, "option_name", "")
            given = (one for one in self.get_params(ctx) if one.param_type_name == "argument")
            takes_number = any(one.metavar == "N" for one in given)
            if typed[1:].isdigit() and takes_number:  # one below 0, which the command refuses
                ctx.ignore_unknown_options = True
                return super().parse_args(ctx, args)
            # The parser would suggest options that share a few letters, such as --log for --lr.
            if getattr(error, "possibilities", None) is not None and typed.startswith("--"):
                names = (opt for one in self.get_params(ctx) for opt in one.opts)
                known = {name[2:].replace("-", "_"): name for name in names if name[:2] == "--"}
                found = None if typed in _OF_OTHERS else meant(typed[2:].replace("-", "_"), known)
                error.possibilities = [known[found]] if found else []  # type: ignore[attr-defined]
                error.message += _OF_OTHERS.get(typed, "")
            raise

    def get_params(self, ctx: Any) -> list[Any]:
        """Return all parameters; the last two are `--help-all` and `--help`."""
        *own, short = super().get_params(ctx)
        return [*own, _help_all(), short]

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line."""
        arguments = [p for p in self.get_params(ctx) if _is_argument(p)]
        return ["[OPTIONS]", *(words(p) if p.required else f"[{words(p)}]" for p in arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a definition list for each group; all have the same width."""
        every = groups(self, ctx)
        shown = every if ctx.meta.get(_ALL) or not _first(ctx) else first_groups(self, ctx)
        column = min(_COLUMN_MAX, max(len(words(p)) for _, params in shown for p in params))
        for title, params in shown:
            with formatter.section(title):
                rows = [(words(param).ljust(column), sentence(param)) for param in params]
                formatter.write_dl(rows, col_max=_COLUMN_MAX)
        if more := _count(every) - _count(shown):
            formatter.write_paragraph()
            formatter.write_text(f"{ctx.command_path} --help-all shows {more} more options.")


def titled_commands(group: Any, ctx: Any) -> list[tuple[str, list[Any]]]:
    """Sort a group's commands by their titles, without hidden ones."""
    by_title: dict[str, list[Any]] = {}
    for command in (group.get_command(ctx, name) for name in group.list_commands(ctx)):
        if not command.hidden:
            by_title.setdefault(command.rich_help_panel or "Commands", []).append(command)
    return list(by_title.items())


def groups(command: Any, ctx: Any) -> list[tuple[str, list[Any]]]:
    """Sort parameters into groups: arguments, the command's own options, then the named ones.

    In each group the first options come first. `--help-all` is absent if `--help` shows the same.
    """
    first = _first(ctx)
    by_title: dict[str, list[Any]] = {"Arguments": [], "Options": []}
    for param in command.get_params(ctx):
        own = "Arguments" if _is_argument(param) else "Options"
        if first or param is not _help_all():
            by_title.setdefault(param.rich_help_panel or own, []).append(param)
    ranked = {title: sorted(params, key=_rank(first)) for title, params in by_title.items()}
    return [(title, params) for title, params in ranked.items() if params]


def first_groups(command: Any, ctx: Any) -> list[tuple[str, list[Any]]]:
    """Return the arguments, then one list of the first options and the help options."""
    first = _first(ctx)
    *own, all_option, help_option = command.get_params(ctx)
    arguments = [param for param in own if _is_argument(param)]
    options = [param for param in own if set(param.opts) & set(first)]
    options = [*sorted(options, key=_rank(first)), all_option, help_option]
    return [*([("Arguments", arguments)] if arguments else []), ("Options", options)]


def words(param: Any) -> str:
    """Write a parameter as it is typed: "ID", "--port N", "--flip/--no-flip"."""
    if _is_argument(param):
        return str(param.metavar)
    names = ", ".join(sorted(param.opts, key=len))
    return "/".join([names, *param.secondary_opts]) if param.is_flag else f"{names} {param.metavar}"


def sentence(param: Any, code: str = "") -> str:
    """Describe a parameter: its purpose, its default, and the variable that sets it.

    `code` is put around literal values.
    """
    facts = [f"default: {default}"] if (default := _default(param, code)) else []
    facts += [f"environment: {code}{param.envvar}{code}"] if param.envvar else []
    return f"{param.help} [{'; '.join(facts)}]" if facts else str(param.help)


def _default(param: Any, code: str) -> str:
    """Format a default: a value as it is typed, or a phrase if it is computed."""
    if isinstance(param.show_default, str):
        return str(param.show_default)
    if not param.show_default or param.default in (None, "", False):
        return ""
    return f"{code}{param.default}{code}"


def _is_argument(param: Any) -> bool:
    return bool(param.param_type_name == "argument")


def _first(ctx: Any) -> tuple[str, ...]:
    """Return a command's first options; () if its `--help` shows all."""
    return FIRST.get(ctx.command_path.partition(" ")[2], ())


def _rank(first: tuple[str, ...]) -> Callable[[Any], int]:
    """Return a key that sorts first options before others, in their own order."""

    def rank(param: Any) -> int:
        return min((first.index(name) for name in param.opts if name in first), default=len(first))

    return rank


def _count(found: list[tuple[str, list[Any]]]) -> int:
    return sum(len(params) for _, params in found)


def _show_all(ctx: typer.Context, wanted: bool) -> None:  # noqa: FBT001 - an option's callback
    if wanted and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        typer.echo(ctx.get_help())
        raise typer.Exit


@cache
def _help_all() -> Any:
    """Make the option `--help-all` by way of a command, because Typer's classes are private."""
    app = typer.Typer(add_completion=False)
    app.command()(_with_help_all)
    return get_command(app).params[0]


def _with_help_all(
    *,
    help_all: Annotated[
        bool,
        typer.Option(
            "--help-all",
            callback=_show_all,
            is_eager=True,
            expose_value=False,
            help="Show all options and exit.",
        ),
    ] = False,
) -> None:
    """Take the option."""


COMPARE = "Compare settings, policies and predictors"

GROUPS = {
    "Train a model": {
        "init": "starting.init",
        "demo": "starting.demo",
        "run": "runs.run",
        "submit": "clients.submit",
        "pause": "clients.pause",
        "continue": "clients.continue_",
        "prioritize": "clients.prioritize",
        "cancel": "clients.cancel",
        "splits": "showing.splits",
    },
    "Watch an experiment": {
        "status": "clients.status",
        "watch": "clients.watch",
        "dashboard": "serving.dashboard",
        "list": "clients.list_experiments",
        "results": "clients.results",
        "logs": "showing.logs",
        "trace": "showing.trace",
        "du": "upkeep.du",
        "rm": "upkeep.rm",
    },
    "Use a trained model": {
        "evaluate": "trained.evaluate",
        "predict": "trained.predict",
        "export": "trained.export",
        "replay": "trained.replay",
        "audit": "trained.audit",
    },
    COMPARE: {"grid": "runs.grid", "tune": "runs.tune", "report": "showing.report"},
    "Run a cluster": {
        "up": "up_and_down.up",
        "ps": "up_and_down.ps",
        "down": "up_and_down.down",
        "manager": "serving.manager",
        "worker": "serving.worker",
    },
    "Check and secure machines": {
        "doctor": "upkeep.doctor",
        "ping": "asking.ping",
        "certs": "upkeep.certs",
    },
}
"""By title in the help: each command's name, and the place of its function."""

_OTHERS = "More commands"


@dataclass(frozen=True, slots=True)
class CommandKind:
    """An installed package's command: a function, or a group of commands, and its title."""

    command: Callable[..., Any]
    title: str = _OTHERS


COMMANDS = Family(
    "command",
    "downpour.commands",
    {
        name: Member(f"downpour.cli.{place.replace('.', ':')}")
        for group in GROUPS.values()
        for name, place in group.items()
    },
)
_TITLES = {name: title for title, group in GROUPS.items() for name in group}


def command_line(words: Sequence[str] = ()) -> Callable[..., Any]:
    """Return a function that runs a command line; it knows only the command that the words name."""
    return _built(words[0] if words and words[0] in COMMANDS else "")


def build(only: str = "") -> Callable[..., Any]:
    """Build the parser of one command, or of all."""
    app = typer.Typer(
        name="downpour",
        help="Train on the machines you have: uneven workers, one shared folder, no lost progress.",
        cls=Group,
        context_settings={"help_option_names": ["-h", "--help"]},
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback()(_downpour)
    for name in [only] if only else COMMANDS:
        try:
            kind = _kind(name)
        except SpecError as error:  # a broken package costs its own command, and no other
            if only:
                raise
            app.command(name, help=str(error).partition(": ")[2], rich_help_panel=_OTHERS)(
                lambda: None
            )
            continue
        if isinstance(kind.command, typer.Typer):
            app.add_typer(kind.command, name=name, rich_help_panel=kind.title)
        else:
            app.command(name, cls=Command, rich_help_panel=kind.title)(kind.command)
    return get_command(app)


def _kind(name: str) -> CommandKind:
    command = COMMANDS[name]
    if isinstance(command, CommandKind):
        return command
    return CommandKind(command, _TITLES.get(name, _OTHERS))


_built = cache(build)
"""Once per process, because building all takes 60 ms."""


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - an option's callback
    if wanted:
        typer.echo(f"downpour {VERSION}")
        raise typer.Exit


def _downpour(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Take the options before a command."""
