"""Start managers and workers: on this machine, in this process, or where an engine places them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import TypeAdapter

from downpour.base.errors import SpecError, did_you_mean
from downpour.cluster.launchers.base import Ended, Engine, Launcher, RunningCluster
from downpour.cluster.launchers.compose import ComposeEngine, ComposeOptions, on_compose
from downpour.cluster.launchers.engine_cluster import PlacedCluster
from downpour.cluster.launchers.inline import InlineCluster
from downpour.cluster.launchers.launch_plan import LaunchPlan
from downpour.cluster.launchers.local import LocalCluster
from downpour.cluster.launchers.ray import RayEngine, RayOptions, on_ray
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
    "launcher_with",
    "on_compose",
    "on_ray",
    "on_slurm",
    "on_ssh",
]

LAUNCHERS: dict[str, Launcher] = {
    "local": LocalCluster,
    "inline": InlineCluster,
    "slurm": on_slurm(),
    "ray": on_ray(),
    "ssh": on_ssh(),
    "compose": on_compose(),
}
"""Each with its usual options, by name."""

_WITH_OPTIONS: dict[str, tuple[type, Callable[[Any], Launcher]]] = {
    "slurm": (SlurmOptions, on_slurm),
    "ray": (RayOptions, on_ray),
    "ssh": (SshOptions, on_ssh),
    "compose": (ComposeOptions, on_compose),
}
"""The launchers that have options: what these are, and what makes a launcher of them."""


def launcher_of(on: Launcher | str) -> Launcher:
    """Return a launcher that was given as one, or by its name.

    Raises:
        SpecError: there is none of that name.
    """
    if not isinstance(on, str):
        return on
    if on not in LAUNCHERS:
        *others, last = LAUNCHERS
        accepted = f"must be {', '.join(others)} or {last}"
        raise SpecError("on", on, accepted + did_you_mean(on, LAUNCHERS))
    return LAUNCHERS[on]


def launcher_with(on: str, options: Mapping[str, Any]) -> Launcher:
    """Return a launcher by its name, with some of its options by theirs.

    Raises:
        SpecError: there is none of that name, or an option cannot be meant.
    """
    if on not in _WITH_OPTIONS:
        return launcher_of(on)
    kind, launcher = _WITH_OPTIONS[on]
    return launcher(TypeAdapter(kind).validate_python(dict(options)))
