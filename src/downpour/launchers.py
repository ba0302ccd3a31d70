"""Launchers: their options, and the interfaces for your own launcher; public.

`downpour.run("FILE", on=on_ray(RayOptions(gpus_per_worker=1)))` trains on a Ray cluster. Another
place to run on is an `Engine`, which starts and stops single workers; `PlacedCluster` makes a
cluster of it. A `LauncherKind` gives it a name and options (`downpour.extending`).
"""

from __future__ import annotations

from downpour.cluster.launchers import (
    ComposeOptions,
    Ended,
    Engine,
    InlineCluster,
    Launcher,
    LauncherKind,
    LaunchPlan,
    LocalCluster,
    PlacedCluster,
    RayOptions,
    RunningCluster,
    SlurmOptions,
    SshOptions,
    on_compose,
    on_ray,
    on_slurm,
    on_ssh,
    option,
)

__all__ = [
    "ComposeOptions",
    "Ended",
    "Engine",
    "InlineCluster",
    "LaunchPlan",
    "Launcher",
    "LauncherKind",
    "LocalCluster",
    "PlacedCluster",
    "RayOptions",
    "RunningCluster",
    "SlurmOptions",
    "SshOptions",
    "on_compose",
    "on_ray",
    "on_slurm",
    "on_ssh",
    "option",
]
