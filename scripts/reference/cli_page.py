"""`docs/reference/cli.md`: the commands, made from their help."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer import Context
from typer.core import TyperGroup

from downpour.cli.commands import build, groups, sentence, titled_commands, words

_INTRODUCTION = """\
# The command line

`make docs` writes this page from the commands' own help.

{summary} Results go to standard output, progress and notes to standard error. A command reports a
user's mistake in one line on standard error, with exit status 2. Any other failure has exit status
1, and Ctrl-C has 130. For an internal error, the line names a file with the traceback; with
`DOWNPOUR_TRACEBACK=1` every error prints its traceback.

`downpour COMMAND --help`, or `-h`, explains a command. If a command has many options, `--help`
shows only the most needed ones and `--help-all` shows all. This page lists all options, the most
needed first.

`downpour --install-completion` lets your shell complete commands and options: bash, zsh, fish or
PowerShell. Then start a new shell. `downpour --version` prints the version.

{contents}
"""


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
    for title, commands in titled:
        parts.append(f"## {title}\n")
        for command in commands:
            parts += _chapter(command, Context(group, info_name=command.name, parent=top))
    return "\n".join(parts).rstrip() + "\n"


def _chapter(command: Any, ctx: Context) -> Iterator[str]:
    yield f"### {ctx.command_path.partition(' ')[2]}\n"
    if isinstance(command, TyperGroup):
        yield f"{command.help}\n"
        for name in command.list_commands(ctx):
            part = command.get_command(ctx, name)
            yield from _chapter(part, Context(command, info_name=name, parent=ctx))
        return
    usage = " ".join([ctx.command_path, *command.collect_usage_pieces(ctx)])
    yield f"    {usage}\n"
    yield f"{command.help}\n"
    for title, params in groups(command, ctx):
        yield f"**{title}**\n"
        for param in params:
            yield f"- `{words(param)}`: {sentence(param, code='`')}"
        yield ""
