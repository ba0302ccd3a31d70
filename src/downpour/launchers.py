"""Launchers: their options, and the interfaces for your own launcher; public.

`downpour.run("FILE", on=on_ray(RayOptions(gpus_per_worker=1)))` trains on a Ray cluster. Another
place to run on is an `Engine`, which starts and stops single workers; `PlacedCluster` makes a
cluster of it. A `LauncherKind` gives it a name and options (`downpour.extending`).
"""

from downpour.base.errors import LaunchError
from downpour.base.options import option
from downpour.cluster.launchers import (
    Ended,
    Engine,
    Launcher,
    LauncherKind,
    LaunchPlan,
    RunningCluster,
)
from downpour.cluster.launchers.cluster import InlineCluster, LocalCluster, PlacedCluster
from downpour.cluster.launchers.compose import ComposeOptions, on_compose
from downpour.cluster.launchers.ray import on_ray
from downpour.cluster.launchers.ray_nodes import RayOptions
from downpour.cluster.launchers.slurm import on_slurm
from downpour.cluster.launchers.slurm_script import SlurmOptions
from downpour.cluster.launchers.ssh import on_ssh
from downpour.cluster.launchers.ssh_script import SshOptions
from downpour.cluster.options import ManagerOptions, WorkerOptions

__all__ = [
    "ComposeOptions",
    "Ended",
    "Engine",
    "InlineCluster",
    "LaunchError",
    "LaunchPlan",
    "Launcher",
    "LauncherKind",
    "LocalCluster",
    "ManagerOptions",
    "PlacedCluster",
    "RayOptions",
    "RunningCluster",
    "SlurmOptions",
    "SshOptions",
    "WorkerOptions",
    "on_compose",
    "on_ray",
    "on_slurm",
    "on_ssh",
    "option",
]
