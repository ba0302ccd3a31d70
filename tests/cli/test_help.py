"""Help: every command and option explained, in groups, with choices and defaults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from typer import Context
from typer.core import TyperGroup

from downpour.cli.commands import (
    COMMANDS,
    FIRST,
    GROUPS,
    build,
    first_groups,
    groups,
    sentence,
    titled_commands,
    words,
)

MOST_ROWS = 22
"""How many arguments and options `--help` shows at most."""


def top() -> tuple[TyperGroup, Context]:
    """Return the command line and its context."""
    group = build()
    assert isinstance(group, TyperGroup)
    return group, Context(group, info_name="downpour", **group.context_settings)


def commands() -> list[Any]:
    """Return every command of the first level."""
    return list(top()[0].commands.values())


def leaves() -> dict[str, tuple[Any, Context]]:
    """Return by its words every command that runs, and its context."""
    found = {}
    group, above = top()
    for command in group.commands.values():
        own = Context(command, info_name=command.name, parent=above)
        for part in getattr(command, "commands", {}).values():
            inner = Context(part, info_name=part.name, parent=own)
            found[inner.command_path.removeprefix("downpour ")] = (part, inner)
        if not isinstance(command, TyperGroup):
            found[str(command.name)] = (command, own)
    return found


def rows(shown: str) -> set[str]:
    """Return what stands at the left of a help's lines."""
    return {line[2:].partition("  ")[0] for line in shown.splitlines() if line[:2] == "  "}


LEAVES = leaves()


@pytest.mark.parametrize("command", commands(), ids=lambda command: command.name)
def test_every_command_and_option_has_a_help_text(command: Any) -> None:
    """A sentence each, which ends like one."""
    assert command.help.split("\n")[0].endswith(".")
    params = command.get_params(Context(command))
    assert len(params) == len(command.params) + 1 + (not isinstance(command, TyperGroup))
    for param in params:
        assert param.help, param.name
        assert param.help.strip().endswith("."), param.help
        assert "None" not in words(param) + sentence(param)


def test_each_command_is_listed_under_exactly_one_title(downpour: Callable[..., Any]) -> None:
    """No command is lost, none stands twice, and each title has several."""
    group, context = top()
    titled = titled_commands(group, context)
    listed = [command.name for _, found in titled for command in found]
    assert sorted(listed) == sorted(n for n, one in group.commands.items() if not one.hidden)
    assert [title for title, _ in titled] == list(GROUPS)
    assert sorted(group.commands) == sorted(COMMANDS)
    assert all(len(found) >= 3 for _, found in titled)
    shown = downpour("--help").out
    for title, found in titled:
        assert f"\n{title}:\n  {found[0].name} " in shown


@pytest.mark.parametrize("name", FIRST)
def test_first_options_exist(name: str) -> None:
    """Each is an option of its command, named once, and `--help` shows them in this order."""
    command, context = LEAVES[name]
    shown = [param for title, found in first_groups(command, context) for param in found]
    names = [option for param in shown for option in param.opts if option in FIRST[name]]
    assert names == list(FIRST[name])
    assert len(shown) < len([p for _, found in groups(command, context) for p in found])


@pytest.mark.parametrize("name", LEAVES)
def test_help_fits_a_mind_and_help_all_shows_everything(
    downpour: Callable[..., Any], name: str
) -> None:
    """The last line of a shortened help says how many options are left, and how to see them."""
    command, context = LEAVES[name]
    short, every = (downpour(*name.split(), option) for option in ("--help", "--help-all"))
    assert (short.status, every.status, every.err) == (0, 0, "")
    everything = command.get_params(context)
    left = [param for param in everything if words(param) not in rows(short.out)]
    if name in FIRST:
        last = f"downpour {name} --help-all shows {len(left)} more options."
        assert short.out.splitlines()[-1] == last
    else:
        assert [param.opts for param in left] == [["--help-all"]]
        assert short == every
        everything.remove(left[0])
    assert len(everything) - len(left) <= MOST_ROWS
    assert {words(param) for param in everything} <= rows(every.out)


@pytest.mark.parametrize("name", FIRST)
def test_in_the_whole_help_first_options_come_first(name: str) -> None:
    """In each group, on the screen and on the page: most needed first."""
    for _, params in groups(*LEAVES[name]):
        needed = [bool(set(param.opts) & set(FIRST[name])) for param in params]
        assert needed == sorted(needed, reverse=True)


def test_choices_defaults_and_variables_are_shown(downpour: Callable[..., Any]) -> None:
    """What is accepted stands beside the option, the default at the end of its sentence."""
    said = " ".join(downpour("run", "--help-all").out.split())
    assert "--aggregate average|weighted|samples|first How updates" in said
    assert "--flip/--no-flip Mirror each" in said
    assert "--betas X,X Decay rates of adam's averages. [default: 0.9,0.999]" in said
    assert "--dataset-options KEY=VALUE" in said
    assert "[default: shared_dir; environment: DOWNPOUR_SHARED]" in said
    assert "Usage: downpour run [OPTIONS] [FILE]" in said


def test_long_lists_of_options_stand_in_groups(downpour: Callable[..., Any]) -> None:
    """A command's own options come first, then the spec's, then those of where it runs."""
    lines = downpour("run", "--help-all").out.splitlines()
    titles = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert titles[:3] == ["Arguments:", "Options:", "The experiment:"]
    assert len(titles) == 14
    assert max(map(len, lines)) <= 80
