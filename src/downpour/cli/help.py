"""The help of commands: plain text in groups, each option with its value and its default.

The screen and the page that `page.py` makes use the same functions, so they cannot differ. Nothing
here knows what a command does. Parameters are typed `Any`, because Typer's classes for them are
private.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

_COLUMN_MAX = 27


class Group(TyperGroup):
    """A group of commands; without a command it shows its help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words of the command line."""
        return super().parse_args(ctx, args or ["--help"])


class Command(TyperCommand):
    """A command whose help lists options in the groups that they name."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line."""
        arguments = [p for p in self.get_params(ctx) if _is_argument(p)]
        return ["[OPTIONS]", *(words(p) if p.required else f"[{words(p)}]" for p in arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a definition list for each group; all have the same width."""
        column = min(_COLUMN_MAX, max(len(words(param)) for param in self.get_params(ctx)))
        for title, params in groups(self, ctx):
            with formatter.section(title):
                rows = [(words(param).ljust(column), sentence(param)) for param in params]
                formatter.write_dl(rows, col_max=_COLUMN_MAX)


def groups(command: Any, ctx: Any) -> list[tuple[str, list[Any]]]:
    """Sort parameters into groups: arguments, the command's own options, then the named ones."""
    by_title: dict[str, list[Any]] = {"Arguments": [], "Options": []}
    for param in command.get_params(ctx):
        own = "Arguments" if _is_argument(param) else "Options"
        by_title.setdefault(param.rich_help_panel or own, []).append(param)
    return [(title, params) for title, params in by_title.items() if params]


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
