"""Help: every command and option explained, in groups, with choices and defaults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from typer import Context
from typer.core import TyperGroup

from downpour.cli.commands import build
from downpour.cli.help import groups, sentence, words


def commands() -> list[Any]:
    """Return every command."""
    group = build()
    assert isinstance(group, TyperGroup)
    return list(group.commands.values())


@pytest.mark.parametrize("command", commands(), ids=lambda command: command.name)
def test_every_command_and_option_has_a_help_text(command: Any) -> None:
    """A sentence each, which ends like one."""
    assert command.help.split("\n")[0].endswith(".")
    params = [param for _, params in groups(command, Context(command)) for param in params]
    assert len(params) == len(command.params) + 1  # and --help
    for param in params:
        assert param.help, param.name
        assert param.help.strip().endswith("."), param.help
        assert "None" not in words(param) + sentence(param)


def test_choices_defaults_and_variables_are_shown(downpour: Callable[..., Any]) -> None:
    """What is accepted stands beside the option, the default at the end of its sentence."""
    said = " ".join(downpour("run", "--help").out.split())
    assert "--aggregate average|weighted|samples|first How updates" in said
    assert "--flip/--no-flip Mirror each" in said
    assert "--betas X,X Decay rates of adam's averages. [default: 0.9,0.999]" in said
    assert "--dataset-options KEY=VALUE" in said
    assert "[default: shared_dir; environment: DOWNPOUR_SHARED]" in said
    assert "Usage: downpour run [OPTIONS] [FILE]" in said


def test_long_lists_of_options_stand_in_groups(downpour: Callable[..., Any]) -> None:
    """A command's own options come first, then the spec's, then those of where it runs."""
    lines = downpour("run", "--help").out.splitlines()
    titles = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert titles[:3] == ["Arguments:", "Options:", "The experiment:"]
    assert len(titles) == 14
    assert max(map(len, lines)) <= 80
