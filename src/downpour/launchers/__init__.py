"""Start managers and workers: on this machine, in this process, or where an engine places them."""

from __future__ import annotations

from downpour.launchers.base import Ended, Engine, Launcher, RunningCluster
from downpour.launchers.local import LocalCluster
from downpour.launchers.placed import PlacedCluster
from downpour.launchers.plan import LaunchPlan

__all__ = [
    "Ended",
    "Engine",
    "LaunchPlan",
    "Launcher",
    "LocalCluster",
    "PlacedCluster",
    "RunningCluster",
]
