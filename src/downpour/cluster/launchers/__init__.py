"""Start managers and workers: on this machine, in this process, or through an engine elsewhere."""

from __future__ import annotations

from downpour.base.names import Family, Member
from downpour.cluster.launchers.base import Launcher
from downpour.cluster.launchers.kinds import LauncherKind

LAUNCHERS = Family(
    "on",
    "downpour.launchers",
    {
        "local": Member("downpour.cluster.launchers.cluster:KIND", "processes of this machine"),
        "inline": Member(
            "downpour.cluster.launchers.inline:KIND", "threads of this process, for a debugger"
        ),
        "slurm": Member("downpour.cluster.launchers.slurm:KIND", "jobs"),
        "ray": Member("downpour.cluster.launchers.ray:KIND", "actors"),
        "ssh": Member("downpour.cluster.launchers.ssh:KIND", "on other machines"),
        "compose": Member(
            "downpour.cluster.launchers.compose:KIND", "containers of a compose file"
        ),
    },
)
"""The launchers that users can name, each as a `LauncherKind`."""


def kind_of(on: str) -> LauncherKind:
    """Return a kind of launcher by its name."""
    kind: LauncherKind = LAUNCHERS[LAUNCHERS.check(on)]
    return kind


def launcher_of(on: Launcher | str) -> Launcher:
    """Return a launcher that the caller gives as an object or by name."""
    return kind_of(on).launcher({}) if isinstance(on, str) else on
