"""`docs/reference/cli.md`: the commands, made from their help.

An option that several commands describe in the same words stands once, in a chapter at the end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from typer import Context
from typer.core import TyperGroup

from downpour.cli.commands import build, groups, sentence, titled_commands, words
from downpour.core.spec import Spec

_INTRODUCTION = """\
# The command line

`make docs` writes this page from the commands' own help.

{summary} Results go to standard output, progress and notes to standard error. A command reports a
user's mistake in one line on standard error, with exit status 2. Any other failure has exit status
1, and Ctrl-C or a notice has 130. For an internal error, the line names a file with the traceback;
with `DOWNPOUR_TRACEBACK=1` every error prints its traceback.

`downpour COMMAND --help`, or `-h`, explains a command. If a command has many options, `--help`
shows only the most needed ones and `--help-all` shows all. Options that several commands have in
common are [explained once](#options-of-several-commands). `run`, `submit` and `plan` also take each
field of [the spec](spec.md) as an option.

`downpour --install-completion` lets your shell complete commands and options: bash, zsh, fish or
PowerShell. Then start a new shell. `downpour --version` prints the version.

{contents}
"""
_SHARED = "## Options of several commands\n"
_COMMON = "Common options"
_COMMANDS_MIN = 3
_UNTITLED = ("Arguments", "Options")  # one list: only options begin with hyphens
_HELP = {"help", "help_all"}  # the introduction explains these


def page() -> str:
    """Return the page: every command with its arguments and options."""
    group = build()
    if not isinstance(group, TyperGroup):
        raise TypeError("the command line has several commands")
    top = Context(group, info_name=group.name, **group.context_settings)
    titled = titled_commands(group, top)
    contents = "\n".join(
        f"- {title}: {', '.join(f'[{command.name}](#{command.name})' for command in commands)}"
        for title, commands in titled
    )
    parts = [_INTRODUCTION.format(summary=group.help, contents=contents)]
    shared = _shared([command for _, commands in titled for command in commands], top)
    for title, commands in titled:
        parts.append(f"## {title}\n")
        for command in commands:
            inside = Context(group, info_name=command.name, parent=top)
            parts += _chapter(command, inside, shared)
    parts.append(_SHARED)
    for title, params in shared.items():
        parts.append(f"### {title}\n")
        parts += [f"- {described}" for described in params]
        parts.append("")
    return "\n".join(parts).rstrip() + "\n"


def _shared(commands: Iterable[Any], top: Context) -> dict[str, list[str]]:
    """Return the descriptions that several commands share, by the title of their group."""
    users: dict[str, list[tuple[str, Any]]] = defaultdict(list)
    for command, ctx in _leaves(commands, top):
        for title, params in groups(command, ctx):
            for param in params if title != "Arguments" else ():
                if param.name not in _HELP and not _is_field(param):
                    users[_described(param)].append((title, param))
    found: dict[str, list[str]] = {_COMMON: []}
    taken = set()
    for described, used in sorted(users.items(), key=lambda item: -len(item[1])):
        title, param = used[0]
        # If two descriptions have the same option, the rarer one stays with its commands.
        if len(used) >= _COMMANDS_MIN and words(param) not in taken:
            taken.add(words(param))
            found.setdefault(_COMMON if title == "Options" else title, []).append(described)
    return {title: sorted(found[title]) for title in sorted(found, key=lambda one: one != _COMMON)}


def _leaves(commands: Iterable[Any], parent: Context) -> Iterator[tuple[Any, Context]]:
    """Yield the commands that do something, also those within a group."""
    for command in commands:
        ctx = Context(command, info_name=command.name, parent=parent)
        if isinstance(command, TyperGroup):
            yield from _leaves(command.commands.values(), ctx)
        else:
            yield command, ctx


def _short(param: Any, common: Iterable[str]) -> str:
    """Return an option's name, with its values if there are two common options of that name."""
    name = max(param.opts, key=len)
    same = sum(one.startswith((f"`{name} ", f"`{name}`")) for one in common)
    return name if same == 1 else words(param)


def _described(param: Any) -> str:
    return f"`{words(param)}`: {sentence(param, code='`')}"


def _chapter(command: Any, ctx: Context, shared: dict[str, list[str]]) -> Iterator[str]:
    yield f"### {ctx.command_path.partition(' ')[2]}\n"
    if isinstance(command, TyperGroup):
        yield f"{command.help}\n"
        for name in command.list_commands(ctx):
            part = command.get_command(ctx, name)
            yield from _chapter(part, Context(command, info_name=name, parent=ctx), shared)
        return
    usage = " ".join([ctx.command_path, *command.collect_usage_pieces(ctx)])
    yield f"    {usage}\n"
    yield f"{command.help}\n"
    elsewhere: list[str] = []
    own: dict[str, list[str]] = {}
    for title, params in groups(command, ctx):
        for param in params:
            described = _described(param)
            if described in shared.get(title, ()):
                elsewhere.append(f"[{title}](#{_slug(title)})")
            elif described in shared[_COMMON]:
                elsewhere.append(f"`{_short(param, shared[_COMMON])}`")
            elif param.name not in _HELP and not _is_field(param):
                own.setdefault(title if title not in _UNTITLED else "", []).append(described)
    for title, lines in own.items():
        yield from [f"**{title}**\n"] if title else []
        yield from (f"- {described}" for described in lines)
        yield ""
    if elsewhere:
        names = ", ".join(dict.fromkeys(elsewhere))
        yield f"[Common](#{_slug(_COMMON)}): {names}\n"


def _is_field(param: Any) -> bool:
    """Whether the page of the spec describes this option: in a named group, in its words."""
    field = Spec.model_fields.get(param.name)
    told = field is not None and str(param.help).startswith(str(field.description))
    return told and param.rich_help_panel is not None


def _slug(title: str) -> str:
    return title.lower().replace(" ", "-")
