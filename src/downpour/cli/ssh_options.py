"""The options of `--on ssh`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from downpour.cli.options import ManagerHost
from downpour.cluster.launchers import Launcher, LaunchPlan
from downpour.cluster.launchers.hosts import read_hosts
from downpour.cluster.launchers.ssh import SshEngine, on_ssh
from downpour.cluster.launchers.ssh_script import SshOptions

_PANEL = "SSH"
Hosts = Annotated[
    str | None,
    typer.Option(
        "--hosts",
        metavar="FILE",
        help="The hosts, a line each: HOST [slots=N] [python=PATH] [shared=PATH] "
        "[env=NAME=VALUE] ...; HOST as ssh takes it.",
        show_default="hosts.txt",
        rich_help_panel=_PANEL,
    ),
]
SshConfig = Annotated[
    str | None,
    typer.Option(
        "--ssh-config",
        metavar="FILE",
        help="The configuration of ssh.",
        show_default="~/.ssh/config",
        rich_help_panel=_PANEL,
    ),
]
"""The options that name files; in a TOML file they are relative to its folder."""
OPTIONS: dict[str, Any] = {"hosts": Hosts, "ssh_config": SshConfig, "manager_host": ManagerHost}


def launcher(given: Mapping[str, Any]) -> Launcher:
    """Return the launcher that the given options ask for."""
    options = SshOptions(**given)
    read_hosts(options.hosts)  # now, before a shared directory is made
    return on_ssh(options)


def shown(given: Mapping[str, Any], plan: LaunchPlan) -> str:
    """Return the command and the script of each of a plan's workers."""
    return SshEngine(SshOptions(**given)).planned(plan)
