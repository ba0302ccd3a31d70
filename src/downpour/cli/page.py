"""The page `docs/cli.md`, made from the commands' own help; `make docs` writes it.

A test compares the page with the code, so neither changes without the other.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from typer import Context
from typer.core import TyperGroup

from downpour.cli.commands import build
from downpour.cli.help import groups, sentence, words

_INTRODUCTION = """\
# The command line

This page is made from the commands' own help: `make docs` writes it.

{summary} A user's mistake is reported in one line on standard error, with exit status 2; any other
failure has exit status 1, and Ctrl-C has 130. Results go to standard output, progress and notes to
standard error. For an internal error, the line names a file with the traceback; with
`DOWNPOUR_TRACEBACK=1` every error prints its traceback.

`downpour --version` prints the version, and `downpour --install-completion` lets the shell complete
commands and options; `-h` is `--help`.
"""


def page() -> str:
    """Return the page: every command with its arguments and options."""
    group = build()
    if not isinstance(group, TyperGroup):
        raise TypeError("the command line has several commands")
    top = Context(group, info_name=group.name, **group.context_settings)
    parts = [_INTRODUCTION.format(summary=group.help)]
    for name in group.list_commands(top):
        command = group.get_command(top, name)
        if command is None or command.hidden:
            continue
        parts += _chapter(command, Context(group, info_name=name, parent=top))
    return "\n".join(parts).rstrip() + "\n"


def _chapter(command: Any, ctx: Context) -> Iterator[str]:
    if isinstance(command, TyperGroup):
        for name in command.list_commands(ctx):
            part = command.get_command(ctx, name)
            yield from _chapter(part, Context(command, info_name=name, parent=ctx))
        return
    usage = " ".join([ctx.command_path, *command.collect_usage_pieces(ctx)])
    yield f"## {ctx.command_path.partition(' ')[2]}\n"
    yield f"    {usage}\n"
    yield f"{command.help}\n"
    for title, params in groups(command, ctx):
        yield f"**{title}**\n"
        for param in params:
            yield f"- `{words(param)}`: {sentence(param, code='`')}"
        yield ""


if __name__ == "__main__":
    sys.stdout.write(page())
