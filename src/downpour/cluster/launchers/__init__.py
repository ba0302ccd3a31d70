"""Start managers and workers: on this machine, in this process, or through an engine elsewhere."""

from __future__ import annotations

from downpour.base.family import Family, Member
from downpour.cluster.launchers.base import Ended, Engine, Launcher, LaunchPlan, RunningCluster
from downpour.cluster.launchers.cluster import LocalCluster, PlacedCluster
from downpour.cluster.launchers.compose import ComposeEngine, ComposeOptions, on_compose
from downpour.cluster.launchers.inline import InlineCluster
from downpour.cluster.launchers.kinds import LauncherKind, option
from downpour.cluster.launchers.ray import RayEngine, on_ray
from downpour.cluster.launchers.ray_nodes import RayOptions
from downpour.cluster.launchers.slurm import SlurmEngine, on_slurm
from downpour.cluster.launchers.slurm_script import SlurmOptions
from downpour.cluster.launchers.ssh import SshEngine, on_ssh
from downpour.cluster.launchers.ssh_script import SshOptions

__all__ = [
    "LAUNCHERS",
    "ComposeEngine",
    "ComposeOptions",
    "Ended",
    "Engine",
    "InlineCluster",
    "LaunchPlan",
    "Launcher",
    "LauncherKind",
    "option",
    "LocalCluster",
    "PlacedCluster",
    "RayEngine",
    "RayOptions",
    "RunningCluster",
    "SlurmEngine",
    "SlurmOptions",
    "SshEngine",
    "SshOptions",
    "launcher_of",
    "kind_of",
    "on_compose",
    "on_ray",
    "on_slurm",
    "on_ssh",
]

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
